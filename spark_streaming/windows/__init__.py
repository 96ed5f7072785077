"""Windows of throughput and latency over the logs, and of the replicas' lag.

``samples`` turns records into amounts, ``sums`` adds them up by window, ``query`` runs both beside the audit and writes
Parquet. Begin with ``samples.py``.
"""

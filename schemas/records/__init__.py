"""The records as frozen dataclasses: log, requests and answers, rows, datanodes' messages, packets.

Begin with ``log.py``.
"""

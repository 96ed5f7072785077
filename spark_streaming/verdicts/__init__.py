"""From records to verdicts: digests recomputed from the log, matched with what the replicas report.

``matching`` judges (pure), ``state`` and ``audit`` run it as Spark's stateful operator, ``sinks`` write. Begin with ``matching.py``.
"""

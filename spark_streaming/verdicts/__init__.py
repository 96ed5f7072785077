"""From records to verdicts: digests recomputed from the log, matched with the replicas' reports.

``core`` judges (pure), ``state`` and ``audit`` run it as Spark's stateful operator, ``query`` starts it, ``sinks``
write. Begin with ``core/matching.py``.
"""

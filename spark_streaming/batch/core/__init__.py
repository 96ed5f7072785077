"""The judgement of a whole log: what the passes have found, and the result that follows from it. Pure.

``gathering`` keeps what Spark's passes bring, ``computed`` holds what the oracle has computed, ``results`` and ``stored_bytes`` make of both the
document that the job prints. Begin with ``results.py``.
"""

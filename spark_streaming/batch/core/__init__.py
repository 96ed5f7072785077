"""The judgement of a whole log: what the passes found, and the result that follows. Pure.

``gathering`` keeps the results of Spark's passes, ``computed`` those of the oracle. ``results`` and ``stored_bytes``
make the document that the job prints from both. Begin with ``results.py``.
"""

"""The audit: Spark recomputes every shard's digests from the log alone and compares the replicas with them.

What belongs here: sources (``sources``), the session (``session``), transforms from DataFrame to DataFrame
(``decode``, ``transforms``, ``windows``), the stateful operator (``reading``, ``matching``, ``audit``), the batch
oracle (``oracle``), thin mains (``jobs``) and the live view (``dashboard``). Of our own code it imports ``schemas``
alone: an auditor that shares the audited code proves nothing, so the reading rule, the digests and the merges are
written here a second time, from their definition (design, sections 3 and 9).
"""

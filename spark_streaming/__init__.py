"""The audit: Spark recomputes every shard's digests from the log alone and compares the replicas with them.

    records    from Kafka to records: sources, decoding, the reading rule, the session
    verdicts   digests and matching (pure), Spark's stateful operator, sinks
    batch      the oracle that audits a whole log at once
    jobs       thin mains; ``windows``, ``queries`` and ``config`` serve them; ``dashboard`` is the live view

Of our own code it imports ``schemas`` alone: an auditor that shares the audited code proves nothing, so the reading rule, the
digests and the merges are written here a second time, from their definition (design, sections 3 and 9).
"""

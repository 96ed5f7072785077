"""The audit: Spark recomputes every shard's digests from the log alone and compares the replicas with them.

    configuration  the settings of the jobs
    records        from Kafka to records: sources, decoding, the reading rule, the session
    verdicts       digests and matching (pure), Spark's stateful operator and its query, sinks
    windows        throughput, latency and lag by window
    batch          the audit of a whole log at once, with the oracle
    jobs           thin mains; ``dashboard`` is the live view

Of our own code it imports ``schemas`` alone: an auditor that shares the audited code proves nothing. The reading rule,
the digests and the merges are written here a second time, from their definition (design, sections 3 and 9).
"""

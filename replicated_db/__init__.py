"""A replicated database on a log. It replicates the result of executing a request, not the request.

What belongs here: column families, merge operators, batches, digests, terms, the reading rule, apply, the leader.
Nothing here knows of volumes or keys: a service brings its column families, its merge operators and a function that
turns a proposal into operations.

How to use it
    1. Open a store with the service's :class:`~replicated_db.core.tables.column_families.Families`.
    2. Feed every record of the shard's log, in order, to
       :class:`~replicated_db.core.applying.replica.Replica`. The replica follows the reading rule (``reading``),
       applies each counting record as one atomic write (``apply``), and says what to publish.
    3. To write, lead: :class:`~replicated_db.core.leading.leader.Leader` executes proposals serially against an
       overlay. It says what to append, when a record is effective, and what to reply.

:mod:`~replicated_db.shell.database` does all three for a service in one process:
``open(column families, merge operators)``, ``submit(operations)``, reads.

What holds (design, sections 3, 4 and 10)
    - A record takes effect iff the reading rule says so; every reader comes to the same answer.
    - State, position, chain, digests and retry rows change in one atomic write, or not at all.
    - Replicas at one position have equal digests; a replica that differs says at which key.
    - An answer leaves only when the batch that holds it is effective and applied.

``core`` has no I/O, no clock, no randomness and no threads. It gets those through ``core.ports``; each port has an
in-memory twin in ``core.tables.memory``. ``shell`` has RocksDB, Kafka, threads, the web and the process.
"""

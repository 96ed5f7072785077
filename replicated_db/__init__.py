"""A replicated database on a log. It replicates the result of executing a request, not the request.

What belongs here: column families, merge operators, batches, digests, terms, the reading rule, apply, the leader.
Nothing here knows of volumes or keys: a service brings its column families, its merge operators and a function that
turns a request into operations.

How to use it

A database is one replica of one shard. A service in one process embeds it. Families, operators and the log are the
same on every replica; the store is each one's own. Here log and stores are the in-memory twins of ``KafkaLog`` and
``RocksStore``.

>>> from replicated_db.core.applying.identity import Identity
>>> from replicated_db.core.tables.memory import MemoryLog, MemoryStore
>>> from replicated_db.core.tables.merge import ADD_INT64, decode_int64, encode_int64
>>> from replicated_db.shell.database.embedded import EmbeddedDatabase
>>> from replicated_db.shell.system import SystemClock
>>> log = MemoryLog(SystemClock())
>>> def opened(node):
...     return EmbeddedDatabase.open(
...         Identity(cluster="shop", shard=0, shards=1, node=node), ["owners", "stock"], [ADD_INT64],
...         store=lambda families: MemoryStore(families.names), log=log, replicas=["a", "b"],
...     )
>>> a, b = opened("a"), opened("b")

Each follows the log from here on. One asks to lead. Operations that are submitted together take effect together: the
future gives their index in the shard, once they are in the log and applied.

>>> a.lead()
>>> put = [a.put("owners", b"bolts", b"Ada"), a.merge("stock", b"bolts", "add_int64", encode_int64(5))]
>>> a.submit(put).result(30)
1

The other replica has the same rows at that index. Whoever needs an answer that is not older waits for it. A snapshot is
of one index.

>>> b.await_index(1, timeout_s=30)
>>> decode_int64(b.get("stock", b"bolts")), b.leading
(5, False)
>>> position, rows = b.snapshot()
>>> position.index, rows.get("owners", b"bolts")
(1, b'Ada')
>>> rows.close()

The leader changes when another one's claim is in the log: the log says who leads, nobody else. What was submitted to a
replica that does not lead waits until it does, and is executed once whatever happens in between.

>>> waiting = b.submit([b.merge("stock", b"bolts", "add_int64", encode_int64(2))])
>>> a.resign()
>>> b.lead()
>>> waiting.result(30)
2
>>> a.await_index(2, timeout_s=30)
>>> decode_int64(a.get("stock", b"bolts")), a.replica.position.leader
(7, 'b')
>>> a.replica.digests == b.replica.digests
True
>>> a.close(), b.close()
(None, None)

The main loop

A service with requests and threads of its own gives a ``ReplicatedDatabase`` its ``DatabaseService`` (what executes,
where requests come from, where answers go). It feeds the database every record, in order, on one thread::

    for entry in records_of_the_log():                   # from database.replica.read_offset + 1 on
        if not database.leaves_to_leader(entry.value):   # else the leader's thread applies it
            database.fill(entry.offset)                  # what that leader left unapplied
            database.apply(entry.offset, entry.value)

and leads, when it is its turn, on another: ``database.loop.lead(stop)`` claims the shard and returns when it is deposed
or told to stop. A :class:`~replicated_db.shell.database.host.DatabaseHost` has what all databases of a process share:
it opens them, installs checkpoints, follows from Kafka, scrubs, trims and closes.

What holds (design, sections 3, 4 and 10)
    - A record takes effect iff the reading rule says so; every reader comes to the same answer.
    - State, position, chain, digests and retry rows change in one atomic write, or not at all.
    - Replicas at one position have equal digests; a replica that differs says at which key.
    - An answer leaves only when the batch that holds it is effective and applied.

``core`` has no I/O, no clock, no randomness and no threads. It gets those through ``core.ports``; each port has an
in-memory twin in ``core.tables.memory``. ``shell`` has RocksDB, Kafka, threads, the web and the process. Read
``core/log/reading`` first, then ``core/applying/replica``, ``core/leading/leader`` and ``shell/database``.
"""

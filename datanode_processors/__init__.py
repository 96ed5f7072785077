"""Datanodes: blocks streamed over TCP to every replica as they arrive, and committed through the pipeline's log.

This package holds the stream server and the state of one stream, block files with their checksums, the replica of each
pipeline's database, and the process that ties them together. The framing of the wire is in ``schemas.records.packets``,
because clients need it too.

How a block is written
    1. A client opens a stream at one datanode of the pipeline (``server``, ``connection``). The OPEN frame carries a
       spanning tree. Each node finds itself in the tree and opens the same stream at its children. It answers once all
       nodes below it have the stream open (``stream``).
    2. Each packet is checked, sent on to the children unchanged, written to the block's file, and acknowledged when
       every replica has it (``forwarding``). Nothing is queued between receiving and sending: a slow replica slows its
       own client, and no other.
    3. A PutBlock makes the length and the checksums a row of the pipeline's database, through the log. A replica
       answers for that row only with bytes that it has verified.

What holds (design, sections 8 and 10)
    - A byte that was acknowledged is on every replica of the tree, and had its checksum when it was stored.
    - A packet that fails its checksum is neither stored, nor sent on, nor acknowledged.
    - A committed length never shrinks, and bytes under it have their checksum on every healthy replica.
    - Every error that a client sees is a code of ``schemas.stream_errors`` and a message that names the input.
    - Streams, connections, payloads, windows and waits have named limits.

Rooms: ``wire`` (TCP), ``blocks`` (the disk), ``pipeline`` (one pipeline's replica and leadership), ``repair`` (finding
and mending damaged bytes); ``core`` is what the rooms' machines share, ``node`` is the process. Modules in a folder
``core`` have no I/O, no clock and no threads. Imports ``replicated_db`` and ``schemas`` only.
"""

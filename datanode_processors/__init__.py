"""Datanodes: blocks streamed over TCP to every replica while they are received, and committed through the pipeline's log.

What belongs here: the stream server and the state of one stream, block files with their checksums, the replica of each pipeline's
database, and the process that holds them together. The framing of the wire is in ``schemas.records.packets``, because clients need it too.

How a block is written
    1. A client opens a stream at one datanode of the pipeline (``server``, ``connection``). The OPEN frame carries a spanning tree; each
       node finds itself in it, opens the same stream at its children, and answers once all below it stand (``stream``).
    2. Each packet is checked, sent on to the children as it came, written to the block's file, and acknowledged when every replica has
       it (``forwarding``). Nothing is queued between receiving and sending: a slow replica slows its own client, and no other.
    3. A PutBlock makes the length and the checksums a row of the pipeline's database, through the log; a replica answers for that row
       only with bytes that it has verified.

What holds (design, sections 8 and 10)
    - A byte that was acknowledged is on every replica of the tree, and had its checksum when it was stored.
    - A packet that fails its checksum is neither stored, nor sent on, nor acknowledged.
    - A committed length never shrinks, and bytes under it have their checksum on every healthy replica.
    - Every error that a client sees is a code of ``schemas.stream_errors`` and a message that names the input.
    - Streams, connections, payloads, windows and waits have named limits.

Rooms: ``wire`` (TCP), ``blocks`` (the disk), ``pipeline`` (one pipeline's replica and leadership), ``repair`` (what makes bytes right
again); ``core`` is what their machines share, ``node`` is the process. What is in a folder ``core`` has no I/O, no clock and no threads.
Imports ``replicated_db`` and ``schemas`` only.
"""

"""What comes to a shard's leader, and what goes back: requests of both doors in, answers and reports out.

``request_reader`` reads om.requests, ``doors`` (a room of its own) brings what comes straight from clients, ``intake``
is the queue of both, ``gateway`` decides what may be executed. ``outbox`` sends. Begin with ``intake``.
"""

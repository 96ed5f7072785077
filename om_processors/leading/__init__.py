"""Who leads a shard, and how requests reach the leader.

``leadership`` decides with the group, ``lending`` and ``watchdog``; ``shard_thread`` runs a leader; ``intake`` reads
om.requests, ``gateway`` orders it, ``outbox`` answers. Begin with ``leadership.py``.
"""

"""The Object Manager: what the tables mean, how requests are executed, and the node that does it.

    namespace   rows of volumes, buckets, keys and the fleet; quota, names, ids. Pure
    execution   requests to operations, once, by the leader. Pure
    leading     who leads a shard, and how requests reach the leader
    fleet       datanodes: heartbeats, placement, background work
    snapshots   checkpoints of buckets' snapshots, open for reading
    snapdiff    what changed in a bucket between two snapshots
    serving     reads and state over HTTP

``node`` is the process that contains them all; begin there. The package imports ``replicated_db`` and ``schemas`` only.
"""

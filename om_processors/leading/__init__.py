"""Who leads a shard, and how requests reach the leader.

``core/leadership_machine`` decides. ``leadership`` carries its decisions out, with the group (``leaders_group``), other
nodes (``loan_calls``) and a thread for each shard (``shard_thread``). ``intake`` reads om.requests, ``gateway`` sorts
its records, ``outbox`` sends the answers. Begin with ``core/leadership_states.py``.
"""

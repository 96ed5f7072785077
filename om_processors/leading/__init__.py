"""Who leads a shard.

``core/leadership_machine`` decides. ``leadership`` carries its decisions out, with the group (``leaders_group``), other
nodes (``loan_calls``) and a thread for each shard (``shard_thread``). Requests come by the room ``intake``. Begin with
``core/leadership_states.py``.
"""

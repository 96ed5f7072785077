"""One pipeline on one of its members: the replica of its database, and its leadership.

The pure modules in ``core``: ``block_service`` turns requests into operations on ``block_tables``, ``election`` says
who claims, ``member_registry`` says which pipelines are opened. ``pipeline`` holds one together, ``opening`` opens
them; ``log_requests``, ``proposals`` and ``leader_calls`` bring requests to the leader. Begin with ``pipeline.py``.
"""

"""One pipeline on one of its members: the replica of its database, and its leadership.

``block_service`` turns requests into operations (pure), ``election`` says who claims (pure), ``pipeline`` holds it together,
``proposals`` and ``leader_calls`` bring requests to the leader. Begin with ``pipeline.py``.
"""

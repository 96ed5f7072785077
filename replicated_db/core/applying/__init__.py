"""From a record of the log to rows: what every replica does, the leader included.

``replica`` offers records to the reading rule and applies those that count. ``apply`` plans one batch. ``late`` and
``late_apply`` validate logged requests when they are applied. ``identity``, ``stored_state``, ``counted``, ``pruning``
and ``evidence`` are parts of a replica. Begin with ``replica.py``.
"""

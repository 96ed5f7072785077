"""From a record of the log to rows: what every replica does, and the leader too.

``replica`` offers records to the reading rule and applies what counts; ``apply`` plans one batch; ``late`` and ``late_apply`` validate
requests when they are applied. Parts of a replica: ``identity``, ``stored_state``, ``counted``, ``pruning``, ``evidence``.
Begin with ``replica.py``.
"""

"""From a record of the log to rows: what every replica does, and the leader too.

``replica`` offers records to the reading rule and applies what counts; ``apply`` writes one batch atomically; ``late`` and
``late_apply`` validate requests when they are applied. Begin with ``replica.py``.
"""

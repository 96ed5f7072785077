"""From a call to an answer over Kafka: retries, expiry, and which answer belongs to which call.

``core/calls`` is the table of calls (pure). ``engine`` keeps many calls in flight; ``transport`` is the way over Kafka.
Begin with ``engine.py``.
"""

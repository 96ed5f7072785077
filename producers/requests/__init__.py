"""From a call to an answer over Kafka: retries, expiry, and which answer belongs to which call.

``calls`` is the table of calls (pure), ``engine`` keeps many in flight, ``transport`` Kafka itself.
Begin with ``engine.py``.
"""

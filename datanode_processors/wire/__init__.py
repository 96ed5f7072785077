"""Block bytes over TCP: connections, streams, and their limits.

``wire`` frames bytes, ``core/stream`` is one stream's state (pure), ``forwarding`` moves its packets to its
``children``, ``reading`` sends blocks, ``server`` accepts, ``peer`` asks other datanodes. Begin with
``core/stream.py``.
"""

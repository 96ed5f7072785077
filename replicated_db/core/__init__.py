"""The log contract, pure: no I/O, no clock, no randomness, no threads.

``ports`` says what the core asks of the world, ``errors`` how the core stops. The rooms, from the lowest up:
``tables``, ``execution``, ``log``, ``applying``, ``leading``. Begin with ``log/reading.py``, the reading rule, then
``applying/replica.py``.
"""

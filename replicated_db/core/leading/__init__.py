"""What only a leader does: execute each request once, append the result, answer when it is effective and applied.

``leader`` is the state machine; ``late_requests`` and ``barriers`` are what it may put into the log besides batches.
Begin with ``leader.py``.
"""

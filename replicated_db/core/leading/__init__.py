"""What only a leader does: execute each request once, append the result, answer once it is effective and applied.

``leader`` is the state machine, ``phases`` its table of transitions. Two builders put proposals into the log behind one
interface (``builder``): ``operations_builder`` executes them, ``requests_builder`` logs them for late validation.
``in_flight`` knows when a record is effective, ``barriers`` when a barrier is due. Begin with ``leader.py``.
"""

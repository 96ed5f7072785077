"""The books and machines of repair: who is at work, who is away, what comes next. Pure.

A look at a copy and a repair of one are machines: pass them events, carry out the ``instructions`` that they return.
``copy_states`` has the tables of what may happen to a copy and to a damaged block; ``upkeep_plan`` holds the state of
all of them. Begin with ``copy_states.py``.
"""

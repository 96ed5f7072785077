"""Recovery drills: faults that an operator inflicts on his own running stack, to see for himself that it recovers.

What belongs here: one module for each drill (``kill_leader`` ...), each with ``DRILL``, its entry of the ``registry``. What they
share is in ``kit``. A drill is told what to do by its ``Session`` and says so: steps with timings, findings (questions with an
answer), a verdict.

A drill never endangers data: it writes to volumes of its own, works on copies or restores what it touched, whatever happens on
the way, and its report says which. docs/drills.md has a page for each.
"""

"""Recovery drills: faults that an operator inflicts on his own running stack, to see for himself that it recovers.

What belongs here: one module for each drill (``kill_leader`` ...), each with an entry in
``kit.catalogue`` and one in ``bodies``. What they share is in ``kit``, and campaigns and fault tests share it too. A
drill reports to its ``Session``: steps with timings, and findings (questions with an answer). The session makes the
report, with a verdict.

A drill never endangers data. It writes to volumes of its own, and works on copies or restores what it touched, whatever
happens on the way. Its report says which. docs/drills.md has a page for each.
"""

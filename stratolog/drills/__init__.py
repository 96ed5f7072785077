"""Recovery drills: faults that an operator inflicts on his own running stack, to see for himself that it recovers.

What belongs here: one module for each drill (``kill_leader`` ...), each with ``DRILL``, its entry of the ``registry``, and what they
share. A drill is told what to do by its ``Session`` and says so: steps with timings, findings (questions with an answer), a verdict.

    report      the record of a drill's run, and the verdict on it. Pure
    judgement   from what was seen to findings. Pure
    logview     what a shard's log says, by the reading rule and by the auditor's own. Pure but for reading
    session     runs a drill: times its steps, remembers what it touched, turns what goes wrong into a verdict
    cluster     the local stack as a drill sees it: its processes, what nodes say, waits
    load        a light load of the drill's own, with a journal of what was acknowledged

A drill never endangers data: it writes to volumes of its own, works on copies or restores what it touched, whatever happens on
the way, and its report says which. docs/drills.md has a page for each.
"""

"""What drills share.

report      the record of a drill's run, and the verdict on it. Pure
judgement   from what was seen to findings. Pure
logview     what a shard's log says, by the reading rule and by the auditor's own. Pure but for reading
session     runs a drill: times its steps, remembers what it touched, turns what goes wrong into a verdict
cluster     the local stack as a drill sees it: its processes, what nodes say, waits
load        a light load of the drill's own, with a journal of what was acknowledged
"""

"""What drills share.

session      runs a drill: times its steps, remembers what it touched, turns errors into a verdict
cluster      the local stack as a drill sees it: its processes, what nodes say, waits
load         a light load of the drill's own, with a journal of what was acknowledged
log_reading  one pass over a shard's log, by the reading rule and by the auditor's own

The judgements are in ``drills/core``.
"""

"""What drills, campaigns and fault tests share.

session      runs a drill: times its steps, remembers what it touched, turns errors into a verdict
cluster      the local stack as a drill sees it: its processes, what nodes say, waits
catalogue    the faults by name: the drill and the campaign that inflict each
faults       processes that are killed, frozen, stopped, and given back
load         a light load in this process, with journals of what became of each write
writer       the client that writes, in this process or in one that may be killed; ``journal_file`` keeps its journal
aftermath    the judge: journals against listings, the log and digests
log_reading  one pass over a shard's log, by the reading rule and by the auditor's own

Campaigns (``tests/chaos``) and fault tests use it too. The judgements are in its ``core``, and in ``drills/core``.
"""

"""Drills about installs of a peer's checkpoint: a disk or the log's beginning is lost, leaders change, processes die.

What belongs here: the drills (``bootstrap``, ``expired_log``, ``bootstrap_leader_change``, ``bootstrap_kill``);
``watch`` (how far an install is, as seen from outside), ``leavings`` (what a kill left, read from a copy), ``kills``
(a kill at one stage after the other), ``victim`` (the node that they start and kill), ``dying_node`` (a node that kills
itself in a stage). The drills run on stacks of their own (``kit.own_stack``). The stages,
and what must hold after a kill, are in ``core``.
"""

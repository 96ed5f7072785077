"""Drills that disturb an install of a peer's checkpoint: leaders change, processes are killed at every stage.

What belongs here: ``bootstrap_leader_change`` and ``bootstrap_kill``, the drills; ``watch`` (how far an install is, as
seen from outside), ``leavings`` (what a kill left, read from a copy), ``kills`` (a kill at one stage after the other),
``victim`` (the node that they start and kill). The drills run on stacks of their own (``kit.own_stack``). The stages,
and what must hold after a kill, are in ``core``.
"""

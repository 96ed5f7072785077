"""Drills that disturb an install of a peer's checkpoint: leaders change meanwhile, processes are killed at every stage.

What belongs here: ``bootstrap_leader_change`` and ``bootstrap_kill``, the drills; ``watch`` (how far an install is, seen
from outside), ``leavings`` (what a kill left, read from a copy), ``kills`` (kill at one stage after the other). They run
on stacks of their own (``kit.own_stack``). The stages, and what must hold after a kill, are in ``core``.
"""

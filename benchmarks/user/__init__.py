"""``make bench-user``: what a user does all day, through the whole stack with its audit.

Begin with ``__main__``: the parts and their order. ``load`` is the user, a process of its own; ``system`` is the stack
and what its processes take; ``commands`` describes one measurement.
"""

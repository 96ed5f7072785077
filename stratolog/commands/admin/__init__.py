"""``stratolog admin``: members, modes, upgrades, loans, the fleet, and the flag of a stopped replica.

Begin with ``group.py``.
"""

"""Datanodes as the Object Manager sees them: heartbeats, placement, and background work on them.

``core/fleet`` has the picture; ``core/placement`` and ``core/pipeline_making`` decide; all three are pure.
``placement_loop`` carries the decisions out. ``block_deletion`` and ``open_key_cleanup`` reclaim space, row by row
(``row_cursor``). ``log_trimming`` trims the log. ``leader_duties`` starts and ends all of these loops. Begin with
``core/placement.py``.
"""

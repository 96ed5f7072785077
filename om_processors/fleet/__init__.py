"""Datanodes as the Object Manager sees them: heartbeats, placement, and background work on them.

``fleet`` is the picture (pure), ``placement`` and ``pipeline_making`` decide (pure), ``placement_loop`` carries it out;
``block_deletion`` and ``open_key_cleanup`` reclaim, row by row (``row_cursor``). ``leader_duties`` has all of it.
Begin with ``core/placement.py``.
"""

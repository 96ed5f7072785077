"""Checkpoints of one database on the disk, compared. ``core/diffing`` says how; begin with ``checkpoint_diff.py``."""

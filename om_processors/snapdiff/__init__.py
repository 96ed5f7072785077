"""What changed in a bucket between two of its snapshots, or between a snapshot and now.

``core`` says what an entry is, and in which state a job may be. ``diff_job`` makes the entries, ``diff_jobs`` bounds
and keeps the jobs of a node; ``serving/snapshot_diff_api`` serves them. Begin with ``core/entries.py``.
"""

"""Backups on the disk: the repository, taking a shard's checkpoint and log, restoring a shard to a new log.

Begin with ``repository.py``.
"""

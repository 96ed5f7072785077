"""Backups: what one consists of, how far its kept log reaches, and how the log of a restored shard begins.

Begin with ``manifest.py``, then ``new_log.py``.
"""

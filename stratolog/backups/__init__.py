"""Backups of a cluster and restores onto new brokers and nodes: the object store's part of ``replicated_db``'s backups.

Begin with ``making.py`` and ``restoring.py``.
"""

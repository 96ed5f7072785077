"""``stratolog backup`` and ``stratolog restore``; the work is done by ``stratolog.backups``.

Begin with ``backup.py``.
"""

"""``stratolog tables`` and ``stratolog sql``: the log as tables, kept and asked. Begin with ``tables.py``."""

"""``stratolog sh`` and ``key``: volumes, buckets, keys and bytes, with Ozone's words. Begin with ``group.py``."""

"""``stratolog sh``: volumes, buckets, keys, bytes and snapshots, with Ozone's words. Begin with ``group.py``."""

"""Rows: column families, merge operators, digests, and the layers over a store before a batch is written.

``memory`` is the in-memory twin of RocksDB. Begin with ``column_families.py``.
"""

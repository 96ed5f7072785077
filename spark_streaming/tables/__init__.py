"""The log as tables: effective requests, and what they leave of keys, buckets and sizes, kept by Structured Streaming.

From a record of the log to rows is pure (``core``). ``keeping`` runs the query, ``delta_tables`` commits to Delta
tables, ``reading_tables`` reads them as of one index. Begin with ``core/shard_fold.py``.
"""

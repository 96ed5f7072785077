"""Digests, and the judgement of the replicas' reports against them. Pure.

``matching`` is the audit of one shard. Its parts are ``log_following``, ``report_matching``, ``judging`` and
``scan_matching``; ``shard_state`` is its memory. ``digests``, ``peers`` and ``scans`` compute. Begin with
``matching.py``.
"""

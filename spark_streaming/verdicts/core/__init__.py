"""Digests, and the judgement of what replicas report against them. Pure.

``matching`` is the audit of one shard; its parts are ``log_following``, ``report_matching``, ``judging`` and ``scan_matching``, its memory
``shard_state``. ``digests``, ``peers`` and ``scans`` compute. Begin with ``matching.py``.
"""

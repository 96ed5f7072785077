"""Reads over HTTP: which node, at which consistency, and what comes back.

``reads`` asks, ``node_addresses`` and ``leaders_group`` know where the nodes are, ``read_views`` are the answers.
Begin with ``reads.py``.
"""

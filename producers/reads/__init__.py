"""Reads over HTTP: the choice of a node, the consistency, and the answers.

``reads`` asks, ``node_addresses`` and ``leaders_group`` find the nodes, ``read_views`` are the answers.
Begin with ``reads.py``.
"""

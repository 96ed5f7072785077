"""Conclusions from the answers of nodes. Pure. Begin with ``leaders.py``."""

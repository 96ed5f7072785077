"""Whole trees and loads: the ingest of a directory, reading it back, downloads, and a load generator.

``tree`` and ``tree_layout`` are how a directory maps to keys. Begin with ``ingest.py``.
"""

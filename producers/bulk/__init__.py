"""Whole trees and loads: ingest of a directory, reading it back, downloads, and a load generator.

``tree`` and ``tree_layout`` map a directory to keys. Begin with ``ingest.py``.
"""

"""Avro and back: the codec (in C where it was built), its generators, the registry of all versions, and rules of evolution.

``codec`` is what everybody calls; ``envelopes`` and ``block_rows`` know a record's bytes. Begin with ``codec.py``.
"""

"""Avro and back: the codec (in C where it was built), its generators, the registry of versions, the rules of evolution.

``codec`` is what all others call; ``envelopes`` and ``block_rows`` define the bytes of one kind of value. Begin with
``codec.py``.
"""

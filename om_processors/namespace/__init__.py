"""Volumes, buckets, keys and the fleet as rows: what a request's handler works with. Pure.

``tables`` reads and writes rows, ``quota`` counts what is used, ``names`` says what is a legal name, ``ids`` mints ids from
the index, ``context`` is what a handler is given. Begin with ``context.py``.
"""

"""Volumes, buckets, keys and the fleet as rows, for the handlers of requests. Pure.

``tables`` reads and writes rows, ``quota`` counts usage, ``snapshots`` has the rows of snapshots and says what they
need, ``names`` says which names are legal, ``ids`` mints ids from the index, ``context`` defines what a handler gets.
Begin with ``context.py``.
"""

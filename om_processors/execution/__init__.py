"""Requests of the object store, executed once by the leader. Pure.

``replicated_db`` calls ``service``. ``execute`` finds a request's handler (``requests/``), which works on the rows of
``namespace``. ``late`` does the same for requests that are validated when they are applied. Begin with ``execute.py``,
then ``requests/key.py``.
"""

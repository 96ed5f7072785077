"""Requests of the object store, executed once by the leader. Pure.

``service`` is what ``replicated_db`` calls; ``execute`` finds the handler (``requests/``), which works on the rows of
``namespace``. ``late`` is the same, validated when it is applied. Begin with ``execute.py``, then ``requests/key.py``.
"""

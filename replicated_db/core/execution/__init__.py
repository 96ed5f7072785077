"""From one proposal to the operations of a batch.

A ``service`` executes proposals in a ``transaction``; ``retry``, ``expiry`` and ``answered`` decide which are executed at all;
``building`` folds their operations into one batch. Begin with ``service.py``.
"""

"""The audit of a whole log at once.

``audit_once`` runs the passes and assembles the result. ``counting`` finds the records that count, and ``oracle``
computes the rows from all their operations (the tests of the stream use both). ``block_reports`` finds the datanodes'
reports of their stored bytes. ``core`` judges (pure). Begin with ``audit_once.py``.
"""

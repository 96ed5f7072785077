"""The audit of a whole log at once.

``audit_once`` runs the passes and assembles the result. ``oracle`` computes the rows from all operations (the tests of
the stream use it too). ``block_reports`` finds the datanodes' reports of their stored bytes. ``core`` judges (pure).
Begin with ``audit_once.py``.
"""

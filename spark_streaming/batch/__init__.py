"""The audit of a whole log at once.

``audit_once`` runs the passes and puts the result together, ``oracle`` computes the rows the long way (the stream is tested against it too),
``block_reports`` finds what the datanodes have said of their stored bytes; ``core`` judges (pure). Begin with ``audit_once.py``.
"""

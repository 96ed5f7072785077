"""What a record of the log means to whoever reads it: void, claim, or counting.

``reading`` is the rule, ``position`` what a replica remembers of it, ``log_reads`` how gaps and lost ends are judged,
``quorum`` what the members' reports say together. Begin with ``reading.py``.
"""

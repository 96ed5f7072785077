"""What a record of the log means to its reader: void, claim, or counting.

``reading`` is the rule. ``position`` is what a replica remembers of the log. ``log_reads`` judges gaps and lost ends.
``quorum`` decides what the members' reports say together. Begin with ``reading.py``.
"""

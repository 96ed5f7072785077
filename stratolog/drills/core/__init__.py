"""From what a drill has seen to findings and a verdict: no waiting, no asking, no clock. Pure.

``report`` is the record of a run, ``journal`` what a load has written, ``log_survey`` and ``log_digest`` what a log says; ``*_findings`` judge, by
subject. Begin with ``report.py``.
"""

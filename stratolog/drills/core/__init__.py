"""Findings and a verdict from what a drill has seen. Pure.

``report`` is the record of a run; ``log_survey`` and ``log_digest`` read a log. The ``*_findings`` modules
judge, one module for each subject. Begin with ``report.py``.
"""

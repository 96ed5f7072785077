"""A running cluster as the commands see it: reaching it, its leaders, its log, and what checks and the audit say.

Begin with ``connection.py``.
"""

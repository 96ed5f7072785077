"""Trimming a log: members and the audit are asked, the rule decides, and the brokers delete.

``log_trimmer`` puts it together; ``member_calls`` asks members over HTTP, ``verdict_tail`` reads the audit's verdicts,
``kafka_records`` asks and tells the brokers. Begin with ``log_trimmer.py``.
"""

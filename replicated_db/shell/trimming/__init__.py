"""Trimming a log: members and the audit are asked, the rule decides, and the brokers delete.

``log_trimming`` says when, for the shards that a process leads, and ``trim_pages`` lets operators say so.
``log_trimmer`` puts one trim together; ``member_calls`` asks members over HTTP, ``verdict_tail`` reads the audit's
verdicts, ``kafka_records`` asks and tells the brokers. Begin with ``log_trimmer.py``.
"""

"""Topics read by whoever wants their end: the tail of a topic, and what verdicts say together (its core).

Begin with ``topic_tail.py``.
"""

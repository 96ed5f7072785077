"""How far a shard's log may be trimmed, and where a trimmed log can be read from (decision 0043).

``bases`` remembers the records at which a log can begin. ``places`` is what members and the audit say of themselves.
``trim_rule`` decides. Begin with ``trim_rule.py``.
"""

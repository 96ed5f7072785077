"""From Kafka to records: sources, decoding, the reading rule a second time, and the session.

``reading`` is the auditor's own reading rule (pure), ``transforms`` are DataFrame to DataFrame. Begin with
``reading.py``.
"""

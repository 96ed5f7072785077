"""Alerts from the audit's verdicts: which stand (``core``), and how a webhook is told (``webhook``)."""

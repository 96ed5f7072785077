"""What the running audit costs: idle, on a backlog, and until its verdicts. Begin with ``__main__.py``."""

"""The audit of a whole log at once: the batch oracle, against which the stream is tested too. Begin with ``oracle.py``."""

"""The records as frozen dataclasses: the log, requests and answers, rows, datanodes' messages, packets. Begin with ``log.py``."""

"""The settings of the audit's jobs: one frozen object from a JSON file. Begin with ``audit_config.py``."""

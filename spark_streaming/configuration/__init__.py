"""What the audit's jobs are told: one frozen object from a JSON file. Begin with ``audit_config.py``."""

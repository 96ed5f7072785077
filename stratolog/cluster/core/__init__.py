"""Findings: what commands and drills say of a cluster. Pure. Begin with ``findings.py``."""

"""Installs of peers' checkpoints on a real stack under load, disturbed again and again: ``python -m tests.chaos.installs``."""

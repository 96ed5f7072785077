"""Authorities and certificates that tests make."""

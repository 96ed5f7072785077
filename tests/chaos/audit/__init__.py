"""Campaigns against the running audit: what it must find and name, and what it must not mistake for a fault."""

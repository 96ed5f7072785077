"""Digests, and the judgement of what replicas report against them. Pure."""

"""The dashboard's HTTP server: pages, events, and drills that are started from it. Begin with ``server.py``."""

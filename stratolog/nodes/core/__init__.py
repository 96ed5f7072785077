"""What follows from the answers of nodes. Pure. Begin with ``leaders.py``."""

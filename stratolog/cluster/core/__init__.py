"""What commands and drills say of a cluster: findings. Pure. Begin with ``findings.py``."""

"""Commands that watch a cluster and tell others: ``stratolog alerts``."""

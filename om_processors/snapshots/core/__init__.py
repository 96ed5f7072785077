"""Names of keys in snapshots. Pure."""

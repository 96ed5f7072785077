"""``stratolog admin certificate`` and ``admin keys``: certificates of a secure cluster, and how keys lie on disk."""

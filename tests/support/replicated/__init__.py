"""A replicated database in memory: a small service, a leader with followers, and what every adapter of a port promises."""

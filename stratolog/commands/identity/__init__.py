"""``stratolog admin user``: who may sign requests. Begin with ``users``."""

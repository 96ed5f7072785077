"""``stratolog admin certificate``: certificates of clients and processes of a secure cluster."""

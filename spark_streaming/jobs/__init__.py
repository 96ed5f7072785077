"""Thin mains: they read a configuration, build a session, start queries and end them."""

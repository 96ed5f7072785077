"""The pure part of the direct door: ``link_talk`` is one connection's conversation, ``routes`` says who leads."""

"""The Object Manager: what the tables mean, how requests are executed, and the node that does it.

What belongs here: pure request execution (``execute``, ``requests/``, ``tables``, ``quota``, ``names``, ``ids``) and queries
(``queries``, ``views``); the shells around them: gateway, leader, follower, node, HTTP. The pure modules have no I/O,
clock, randomness or threads. Imports ``replicated_db`` and ``schemas`` only.
"""

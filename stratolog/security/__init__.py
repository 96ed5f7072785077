"""Keys and certificates of a cluster: the authority that makes them (decision 0073).

Begin at ``authority.py``. Nodes need its files alone; they read them through ``schemas/security/tls.py``.
"""

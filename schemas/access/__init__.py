"""Who somebody is, and what somebody may do: what clients and nodes share of it (decisions 0071 and 0072).

``credentials`` derives users' and tokens' secrets and signs with them, ``signatures`` is how a signature travels,
``acl`` has the words of access control lists. Begin with ``credentials``.
"""

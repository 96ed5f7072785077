"""Who calls a node: signatures of requests, of calls of HTTP, and of direct connections (decision 0071).

``identities`` judges signatures by the rows of shard 0, ``readers`` stands before a node's HTTP API. Begin with
``identities``.
"""

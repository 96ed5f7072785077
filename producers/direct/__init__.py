"""The direct door on the client's side: calls and lookups straight to the nodes, over TCP (design, section 11).

``direct_transport`` is the connection that the request engine uses, ``fallback`` joins it with Kafka's (whose brokers
say in ``brokers_word`` which nodes are theirs), ``node_link`` is one socket. ``core`` has what a link says when, the
way of a call, and the one cluster of all nodes. Begin with ``direct_transport``.
"""

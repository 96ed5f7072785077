"""The direct door on the client's side: calls and lookups straight to the nodes, over TCP (design, section 11).

``direct_transport`` is the connection that the request engine uses, ``fallback`` joins it with Kafka's, ``node_link``
is one socket. ``core`` has what a link says when, and the way of a call. Begin with ``direct_transport``.
"""

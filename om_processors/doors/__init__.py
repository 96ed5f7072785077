"""The direct door of a node: clients' TCP connections straight to the leader, for requests and lookups.

``direct_door`` upgrades HTTP connections and keeps them, ``door_connection`` is one of them, ``door_lookups`` answers
reads. ``core/room`` says which connection makes room for a new one. The bytes are those of ``schemas/door``; requests
join ``intake/intake``. Begin with ``direct_door``.
"""

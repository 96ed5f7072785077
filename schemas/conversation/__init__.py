"""One connection to a datanode as a conversation: bytes in and events out, commands in and bytes out. Pure.

``states`` has the table of what may be said when, for both roles; ``limits`` what a record may weigh; ``conversation``
joins them with the frames of ``schemas.records.packets``. The client, the Object Manager and the datanodes wrap it in
sockets, threads and deadlines of their own. Begin with ``states.py``.
"""

"""One connection to a datanode as a conversation: bytes in and events out, commands in and bytes out. Pure.

``states`` has the table of what each role may say when; ``limits`` says how large a record may be; ``conversation``
joins them with the frames of ``schemas.records.packets``. The client, the Object Manager and the datanodes wrap a
conversation in their own sockets, threads and deadlines. Begin with ``states.py``.
"""

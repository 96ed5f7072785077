"""Block bytes to datanodes: streams, their commits, and what happens when a datanode fails.

``block_writer`` writes one block, over ``block_stream``; ``datanodes`` sends requests.
``core/stream_window`` keeps what is not acknowledged (pure). ``block_commit`` commits and watches,
``background_commits`` does so on a thread. Begin with ``block_writer.py``.
"""

"""Keys as files: ``client.open`` for writing and reading, in threads and in asyncio.

``key_files`` are the objects that a program holds; ``key_writer`` and ``key_reader`` do the work over blocks.
Begin with ``key_files.py``.
"""

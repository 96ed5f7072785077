"""Keys as files: ``client.open`` for writing and reading, in threads and in asyncio.

``key_files`` has the file objects that a program holds; ``key_writer`` and ``key_reader`` write and read blocks for
them. Begin with ``key_files.py``.
"""

"""Blocks on the disk: files, checksum cells, containers, and what each fsync policy promises.

``block_store`` is the door, ``block_file`` one block, ``block_writer`` one stream that writes it. Begin with ``block_store.py``.
"""

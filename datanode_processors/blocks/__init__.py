"""Blocks on the disk: files, checksum cells, containers, and what each fsync policy promises.

``block_store`` is the door, with ``block_table`` (the blocks it knows), ``cell_reader`` and ``container_store``.
``block_file`` is one block, with ``block_state``; ``block_writer`` is one stream that writes it. Begin with
``block_store.py``.
"""

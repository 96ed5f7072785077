"""The disk below the blocks: bytes of files, room, and when the kernel stores what was written (``fsync``)."""

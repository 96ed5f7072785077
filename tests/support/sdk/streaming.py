"""What a file that is being written streams at this moment."""

from __future__ import annotations

from producers.blocks.block_writer import BlockWriter
from producers.files.inline_keys import InlineWriter
from producers.files.key_files import KeyOutput


def current_block(file: KeyOutput) -> BlockWriter:
    """Return the block to which the file's bytes go; they have been too many to be a small key's."""
    writer = file._writer
    if isinstance(writer, InlineWriter):
        assert writer._writer is not None, "all bytes are held"
        writer = writer._writer
    assert writer._current is not None
    return writer._current

"""What a backup keeps of the blocks of keys. Imports nothing: the command's help needs it without any extra."""

NONE = "none"
REFERENCE = "reference"
WHOLE = "whole"
MODES = (NONE, REFERENCE, WHOLE)
"""Nothing; their rows; their rows and bytes."""

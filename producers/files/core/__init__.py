"""How a failure affects a key that is being written: its fate, and whether another block is tried. Pure."""

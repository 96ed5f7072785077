"""What a failure makes of a key that is written: its fate, and whether another block is tried. Pure."""

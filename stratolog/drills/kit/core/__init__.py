"""What judges a fault under load, without I/O: the journal of a client, and what must hold afterwards. Pure.

journal    what a client tried, and what it was told; the names, sizes and bytes of its keys
judging    journals against listings, bytes and the log: lost, duplicated, unexpected, divergent
"""

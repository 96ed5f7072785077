"""Block tokens at a datanode: the keys that nodes have told it, and what clients may do with their tokens."""

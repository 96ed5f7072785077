"""What of a stream is not acknowledged yet, and the tree that its packets take. Pure."""

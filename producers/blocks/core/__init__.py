"""What of a stream is not acknowledged yet, the tree that its packets take, and what is done when it fails. Pure."""

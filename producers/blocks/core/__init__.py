"""The unacknowledged part of a stream, the tree that its packets take, and the recovery when it fails. Pure."""

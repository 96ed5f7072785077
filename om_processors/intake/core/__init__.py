"""The pure part of the intake: how long the queue is, and whom to refuse (``backlog``)."""

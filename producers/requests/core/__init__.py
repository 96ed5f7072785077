"""The open calls, when each is sent again, and which answer belongs to which call; the cluster of a client. Pure."""

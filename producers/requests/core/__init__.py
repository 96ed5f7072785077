"""The open calls, when each is sent again, and which answer belongs to which call. Pure."""

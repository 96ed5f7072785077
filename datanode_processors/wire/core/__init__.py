"""The state of one stream, and the limits that strangers meet. Pure."""

"""The state of one stream, and the limits that clients and peers meet. Pure."""

"""What needs a token; pure."""

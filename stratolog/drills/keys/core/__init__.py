"""What must hold after keys were changed under load. Pure."""

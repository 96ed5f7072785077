"""Which calls are open, when each is sent again, and which answer is whose. Pure."""

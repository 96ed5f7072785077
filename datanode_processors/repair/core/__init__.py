"""The books of repair: who is at work, who is away, what comes next. Pure."""

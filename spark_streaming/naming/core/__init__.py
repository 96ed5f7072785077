"""From the rows of replicas to the keys in which one differs; pure."""

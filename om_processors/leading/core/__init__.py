"""What decides about leadership without doing anything: loans, membership, signs of life, the backlog's limits. Pure."""

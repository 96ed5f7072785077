"""From rows that differ to entries of a snapshot diff, and the states of a job that does that. Pure."""

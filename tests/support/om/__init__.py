"""The Object Manager in memory: its execution on dicts, a leader with a follower, a model of it, fleets of datanodes."""

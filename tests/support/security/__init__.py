"""Real processes on this machine: brokers, nodes of the Object Manager, the waits for them, their secret."""

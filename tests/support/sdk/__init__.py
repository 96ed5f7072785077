"""What the client is tested against: an Object Manager, its HTTP nodes and datanodes, in this process."""

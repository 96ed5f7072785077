"""What a connection to a datanode reports, and in whose words."""

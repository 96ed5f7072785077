"""Means to break what runs, and to say afterwards what was acknowledged: stacks, datanodes, networks, disks, records."""

"""What a process with replicas serves over HTTP: digests, rows, counts. Faust's pages go through ``node_web``."""

"""What a process with replicas serves over HTTP: digests, rows, metrics. ``http_guard`` says who may change what."""

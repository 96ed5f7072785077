"""What a process that holds replicas shows over HTTP: digests, rows, metrics, and who may change something (``http_guard``)."""

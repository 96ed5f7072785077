"""One file of an ingest on its way to a key: what is sent, and how it ends. Pure."""

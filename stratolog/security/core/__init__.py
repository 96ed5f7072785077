"""When a certificate is made anew. No files, no clock."""

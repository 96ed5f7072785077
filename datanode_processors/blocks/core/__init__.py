"""Checksum cells and the digests of what is stored. Pure."""

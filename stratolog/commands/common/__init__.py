"""What all commands share: options, output, tables, addresses, names and waiting. Begin with ``output.py``."""

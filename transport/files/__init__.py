"""Files that survive a loss of power: their bytes are on the disk before their name.

All is in ``durable_files``.
"""

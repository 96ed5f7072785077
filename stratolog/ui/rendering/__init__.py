"""From views to HTML, as text. Pure functions; every text is escaped. Begin with ``panels.py``."""

"""From views to HTML, by the templates in ``templates``; every text is escaped. Begin with ``panels.py``."""

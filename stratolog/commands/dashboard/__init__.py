"""``stratolog ui``: the dashboard in the browser. Begin with ``ui.py``."""

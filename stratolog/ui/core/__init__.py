"""From verdicts, windows and statuses to what a page shows. Pure. Begin with ``board.py``."""

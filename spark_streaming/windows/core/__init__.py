"""Windows of time, added up over micro-batches. Pure. Begin with ``window_book.py``."""

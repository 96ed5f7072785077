"""How long to wait, and how often to try: deadlines, pauses that double, threads that no exit waits for.

Begin with ``deadline``. ``core`` is pure.
"""

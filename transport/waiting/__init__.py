"""How long to wait, and how often to try: deadlines, and pauses that double.

Begin with ``deadline``. ``core`` is pure.
"""

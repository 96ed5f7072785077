"""What a person may set, and for which processes: one table, of which each process gets a slice.

Begin with ``table.py`` (the settings); ``declaring.py`` says how one is declared and checked, ``values.py`` how a value
is read.
"""

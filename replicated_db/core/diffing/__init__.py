"""Which rows differ between two checkpoints of one database. Pure, and without any knowledge of what the rows mean.

``file_plan`` says, from the two lists of table files, which files have to be read and which key ranges have to be
compared. ``table_file`` reads the keys in a table file's bytes. ``sweep`` compares two views row by row. Begin with
``file_plan.py``.
"""

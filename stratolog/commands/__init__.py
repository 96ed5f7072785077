"""The command's groups, one small module each.

A module has one public function, ``register(app)``, which adds its commands; ``stratolog.cli`` calls those it lists. A
command only reads options, calls the code that does the work, and prints (``common``): a table for people, ``--json``
for programs. Heavy libraries (Spark, Faust, RocksDB) are imported inside the command that needs them.
"""

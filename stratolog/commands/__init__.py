"""The command's groups, one small module each.

A module has one public function, ``register(app)``, which adds its commands; ``stratolog.cli`` calls those it lists. The
commands themselves only read options, call what does the work, and print (``common``): a table for people, ``--json``
for programs. What is heavy (Spark, Faust, RocksDB) is imported inside the command that needs it.
"""

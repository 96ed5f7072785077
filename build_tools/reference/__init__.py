"""Reference pages that are made from the code: commands, settings, metrics, schemas, topics.

``python -m build_tools.reference`` writes them into docs/reference; a test holds them equal to what it would write.
"""

"""Folds of what a topic holds: pure."""

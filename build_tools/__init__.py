"""How the package is built: the wheel has everything below ``stratolog`` (decision 0036); and the awaited methods.

Beside it stands the hook for commit messages (``commit_subject``).
"""

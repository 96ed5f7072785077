"""The secret of clusters that tests wire together themselves; a :class:`TestStack` makes one in its folder, as ``up`` does."""

from __future__ import annotations

from schemas.privilege import ClusterSecret

SECRET_TEXT = "the secret of every cluster of the tests"
SECRET = ClusterSecret(SECRET_TEXT.encode())

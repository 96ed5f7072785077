"""The cluster of a client's nodes: one alone, that of the first node that names its own. Pure.

A node that names another one is refused: two clusters may have as many shards, and a client would write into either.
"""

from __future__ import annotations


class OneCluster:
    """Remembers which cluster was named first, and by whom.

    >>> ours = OneCluster()
    >>> ours.fault_of("blue", "om1", "a:1"), ours.fault_of("", "om2", "b:1"), ours.fault_of("blue", "om3", "c:1")
    (None, None, None)
    >>> ours.fault_of("red", "om4", "d:1")
    "it is 'om4' of cluster 'red', and this client speaks with cluster 'blue', of which 'om1' at a:1 is"
    """

    def __init__(self) -> None:
        self.name = ""
        """The cluster's name; empty until a node has named it."""
        self._witness = ""

    def fault_of(self, cluster: str, node: str, address: str) -> str | None:
        """Return why a node is refused that names its cluster; None if it is not. A node that names none is not."""
        if not self.name and cluster:
            self.name, self._witness = cluster, f"{node!r} at {address}"
        if cluster in ("", self.name):
            return None
        return (
            f"it is {node!r} of cluster {cluster!r}, and this client speaks with cluster {self.name!r}, "
            f"of which {self._witness} is"
        )

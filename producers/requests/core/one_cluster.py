"""The cluster of a client: one alone, that of its brokers, or of the first node that names its own. Pure.

A node that names another one is refused: two clusters may have as many shards, and a client would write into either.
Clusters are told apart by name, and by the id of their brokers (``schemas/kafka/brokers_id.py``): names may be equal.
"""

from __future__ import annotations

NAME, BROKERS = "cluster", "Kafka cluster"
"""What a node may name."""


class OneCluster:
    """Remembers which cluster was named first, and by whom. For any thread.

    >>> ours = OneCluster()
    >>> ours.fault_of("blue", "'om1' at a:1"), ours.fault_of("", "'om2' at b:1"), ours.fault_of("blue", "'om3' at c:1")
    (None, None, None)
    >>> ours.fault_of("red", "'om4' at d:1")
    "'om4' at d:1 is of cluster 'red', and this client speaks with cluster 'blue', that of 'om1' at a:1"
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str]] = {}
        """What was named first, and by whom."""

    @property
    def name(self) -> str:
        """The cluster's name; empty until a node has named it."""
        return self._first.get(NAME, ("", ""))[0]

    @property
    def brokers_id(self) -> str:
        """The id of its brokers; empty until somebody has named it."""
        return self._first.get(BROKERS, ("", ""))[0]

    def fault_of(self, name: str, who: str, brokers_id: str = "") -> str | None:
        """Return why somebody is refused who names a cluster; None if it is not. What is empty is not named."""
        said = [(kind, value) for kind, value in ((NAME, name), (BROKERS, brokers_id)) if value]
        for kind, value in said:
            ours, witness = self._first.get(kind, (value, who))
            if value != ours:
                return f"{who} is of {kind} {value!r}, and this client speaks with {kind} {ours!r}, that of {witness}"
        for kind, value in said:
            if self._first.setdefault(kind, (value, who))[0] != value:  # another thread was first
                return self.fault_of(name, who, brokers_id)
        return None

"""Which partitions a datanode follows, and when it lets its own records rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from datanode_processors.follower import follow
from schemas.topics import DN_AUDIT, DN_LOG


class Transport:
    """The transport of a Faust app, which remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda topic, partition: self.told.append((name, topic, partition))


def test_a_pipeline_is_followed_on_its_log_and_its_members_reports_and_rests_while_it_is_led() -> None:
    transport = Transport()
    app: Any = SimpleNamespace(transport=transport)
    loop: Any = SimpleNamespace(replica=SimpleNamespace(identity=SimpleNamespace(shard=3)), on_rest=None)
    follow(app, {3: loop}, 3)
    assert transport.told == [("follow", DN_LOG, 3), ("follow", DN_AUDIT, 3)]
    transport.told.clear()
    loop.on_rest(True)
    loop.on_rest(False)
    assert transport.told == [("rest", DN_LOG, 3), ("wake", DN_LOG, 3)]

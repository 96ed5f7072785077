"""Where datanodes are, as far as the Object Manager has said; it is played, and so is time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from producers.blocks import datanode_directory as module
from producers.blocks.datanode_directory import (
    CONTAINERS_PATH,
    MIN_REFRESH_MS,
    PATH,
    SILENT_MS,
    STATUS_PATH,
    TRY_MS,
    Directory,
)
from producers.errors import RequestFailed, RetryableError
from schemas.records.datanode import Member
from schemas.result_codes import INTERNAL_ERROR
from schemas.stream_errors import NO_SUCH_PIPELINE
from transport.waiting.deadline import Deadline


class World:
    """An Object Manager that answers with ``addresses`` of the members of pipeline-1, or raises ``failing``."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []
        self.addresses = {"dn1": "h1:1", "dn2": "h2:1"}
        self.failing: Exception | None = None
        self.answer: dict[str, Any] | None = None
        self.asked: list[tuple[str, bool]] = []
        """Paths, and whether they were to be answered within TRY_MS."""
        reads: Any = self
        self.directory = Directory(reads)

    def get(
        self, path: str, parameters: dict[str, str], consistency: str, *, deadline: Deadline | None = None
    ) -> dict[str, Any]:
        assert (parameters, consistency) == ({}, "stale")
        assert deadline is None or 0 < deadline.left_ms <= TRY_MS
        self.asked.append((path, deadline is not None))
        if self.failing is not None:
            raise self.failing
        if self.answer is not None:
            return self.answer
        members = [member_of(name, address) for name, address in self.addresses.items()]
        if path.startswith(CONTAINERS_PATH):
            return {"replicas": members}
        return {"cluster": "c", "pipelines": [pipeline_of(members)]}

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def later(self, ms: float) -> None:
        self.now_s += ms / 1000

    def views(self) -> Any:
        return self.directory.pipeline("pipeline-1")

    def pages(self) -> int:
        return sum(path == PATH for path, _ in self.asked)


def member_of(name: str, address: str) -> dict[str, str]:
    return {"datanode": name, "address": address, "http_address": f"{name}:80", "rack": "/r"}


def pipeline_of(members: Any) -> dict[str, Any]:
    return {"pipeline": "pipeline-1", "partition": 1, "state": "OPEN", "members": members}


def addresses(view: Any) -> list[str]:
    return [member.address for member in view.members]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=made.sleep))
    return made


def test_a_pipeline_is_asked_for_once(world: World) -> None:
    view = world.views()
    assert (view.pipeline, view.partition, view.state, view.majority) == ("pipeline-1", 1, "OPEN", 2)
    assert view.members[0] == Member(datanode="dn1", address="h1:1", http_address="dn1:80", rack="/r")
    assert world.views() is view
    assert world.asked == [(PATH, False)]


def test_a_pipeline_that_nobody_knows_is_an_error_that_may_pass(world: World) -> None:
    with pytest.raises(RetryableError, match="knows no pipeline 'pipeline-9'") as caught:
        world.directory.pipeline("pipeline-9")
    assert caught.value.status == NO_SUCH_PIPELINE


def test_it_is_asked_again_no_sooner_than_after_a_while(world: World) -> None:
    world.views()
    world.directory.refresh()
    world.later(MIN_REFRESH_MS - 1)
    world.directory.refresh()
    assert world.pages() == 1
    world.later(1)
    world.directory.refresh()
    assert world.pages() == 2


@pytest.mark.parametrize("answer", [{}, {"pipelines": None}, {"pipelines": [{}]}, {"pipelines": [pipeline_of("x")]}])
def test_an_answer_that_is_none_is_named_and_changes_nothing(world: World, answer: dict[str, Any]) -> None:
    view = world.views()
    world.later(MIN_REFRESH_MS)
    world.answer = answer
    with pytest.raises(RequestFailed, match=f"GET {PATH}: the answer cannot be understood") as caught:
        world.directory.refresh()
    assert caught.value.status == INTERNAL_ERROR
    assert world.directory.known(view) is view


def test_the_name_of_the_cluster_comes_with_the_pipelines_or_from_the_status(world: World) -> None:
    assert world.directory.cluster_name() == "c"
    assert world.directory.cluster_name() == "c"
    assert world.asked == [(PATH, False)]
    older = World()
    older.answer = {"pipelines": []}
    with pytest.MonkeyPatch.context() as patched:
        real = older.get

        def get(path: str, *arguments: Any, **words: Any) -> dict[str, Any]:
            return {"cluster": "old"} if path == STATUS_PATH else real(path, *arguments, **words)

        patched.setattr(older, "get", get)
        assert older.directory.cluster_name() == "old"


def test_a_try_is_short_and_an_object_manager_that_just_failed_is_left_alone(world: World) -> None:
    world.failing = RetryableError("NO_LEADER", "nobody leads")
    world.directory.try_refresh()
    assert world.asked == [(PATH, True)]
    world.later(SILENT_MS - 1)
    world.directory.try_refresh()
    assert world.pages() == 1
    world.later(1)
    world.failing = RequestFailed("INTERNAL_ERROR", "as if")
    world.directory.try_refresh()
    assert world.pages() == 2
    with pytest.raises(RequestFailed):
        world.views()
    world.later(SILENT_MS)
    world.failing = None
    world.directory.try_refresh()
    assert addresses(world.views()) == ["h1:1", "h2:1"]
    world.later(MIN_REFRESH_MS)
    world.directory.try_refresh()
    assert world.pages() == 5, "it answers again"


def test_who_needs_the_present_state_gets_no_older_answer(world: World) -> None:
    view = world.views()
    world.addresses["dn2"] = "h2:2"
    assert addresses(world.directory.known(view)) == ["h1:1", "h2:1"]
    assert addresses(world.directory.current(view)) == ["h1:1", "h2:1"], "that was at this very moment"
    world.later(1)
    assert addresses(world.directory.current(view)) == ["h1:1", "h2:2"]
    assert world.slept == [pytest.approx((MIN_REFRESH_MS - 1) / 1000)], "it was just asked"
    assert world.asked[-1] == (PATH, True)
    world.later(MIN_REFRESH_MS)
    world.directory.current(view)
    assert len(world.slept) == 1
    world.later(MIN_REFRESH_MS)
    world.failing = RetryableError("NO_LEADER", "nobody leads")
    assert addresses(world.directory.current(view)) == ["h1:1", "h2:2"]
    count = world.pages()
    world.directory.current(view)
    assert world.pages() == count, "it just failed"


def test_what_was_never_reported_stays_as_it_is(world: World) -> None:
    view = world.views()
    fresh = World()
    assert fresh.directory.known(view) is view


def test_a_datanode_that_has_not_moved_is_asked_about_once_in_a_while(world: World) -> None:
    view = world.views()
    gone = view.members[1]

    def where(*, again: bool = False) -> str:
        found: Member = world.directory.whereabouts(view, gone, again=again)
        return found.address

    world.later(MIN_REFRESH_MS)
    assert where() == "h2:1"
    assert world.pages() == 2
    world.later(SILENT_MS - 1)
    assert where() == "h2:1"
    assert world.pages() == 2
    assert where(again=True) == "h2:1"
    assert world.pages() == 3
    world.later(1)
    assert where() == "h2:1"
    assert world.pages() == 4
    world.addresses["dn2"] = "h2:2"
    world.later(SILENT_MS)
    assert where() == "h2:2"
    world.addresses.pop("dn2")
    world.later(SILENT_MS)
    assert where() == "h2:1", "nobody knows it any more"


def test_a_failure_confirms_no_address(world: World) -> None:
    view = world.views()
    world.later(MIN_REFRESH_MS)
    world.failing = RetryableError("NO_LEADER", "nobody leads")
    assert world.directory.whereabouts(view, view.members[0], again=False) == view.members[0]
    assert world.directory._confirmed == {}


def test_the_holders_of_a_container_are_none_if_nobody_says(world: World) -> None:
    assert [member.datanode for member in world.directory.holders(7)] == ["dn1", "dn2"]
    assert world.asked == [(f"{CONTAINERS_PATH}/7", True)]
    answers: list[dict[str, Any]] = [{}, {"replicas": None}, {"replicas": [{}]}]
    for answer in answers:
        world.answer = answer
        assert world.directory.holders(7) == []
    for failure in (RetryableError("NO_LEADER", "nobody"), RequestFailed("X", "no")):
        world.failing = failure
        assert world.directory.holders(7) == []

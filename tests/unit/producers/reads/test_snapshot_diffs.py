"""A snapshot diff as its client sees it: waiting, pages, jobs that are lost, cancelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from producers.errors import NotConnected, NotFound, RequestFailed, RetryableError, failure
from producers.reads import snapshot_diffs
from producers.reads.read_views import Pages, SnapshotDiffEntry
from producers.reads.snapshot_diffs import MAX_BEGINS, MAX_FAILED_LOOKS, SnapshotDiff, SnapshotDiffProgress

TWO = {"from": "one", "to": "two"}
KEYS = [f"k{number}" for number in range(5)]


class Nodes:
    """Nodes with jobs, as the HTTP API has them: a job is RUNNING at its first looks, then DONE with the keys KEYS."""

    def __init__(self, *addresses: str, looks: int = 2) -> None:
        self.addresses = list(addresses) or ["n1"]
        self.looks = looks
        self.jobs: dict[str, tuple[str, int]] = {}
        self.down: set[str] = set()
        self.asked: list[str] = []
        self.failing: dict[str, Any] = {}

    def post_to_any(self, path: str, parameters: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        assert path == "/path"
        for address in self.addresses:
            if address not in self.down:
                job = f"{len(self.asked):032x}"
                self.asked.append(address)
                self.jobs[job] = (address, self.looks)
                return address, self.answer(job, "QUEUED")
        raise NotConnected("NOT_CONNECTED", "no node answers")

    def ask_at(self, method: str, address: str, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        if address in self.down:
            raise NotConnected("NOT_CONNECTED", f"{address}: refused")
        words = path.split("/")
        job = words[3]
        if self.jobs.get(job, ("", 0))[0] != address:
            raise failure("SNAPSHOT_DIFF_NOT_FOUND", f"{address}: no snapshot diff {job} here")
        if method == "POST":
            assert words[4] == "cancel"
            return self.answer(job, "CANCELLING")
        left = self.jobs[job][1]
        self.jobs[job] = (address, left - 1)
        if left > 0:
            return self.answer(job, "RUNNING")
        if self.failing:
            return {**self.answer(job, "FAILED"), **self.failing}
        start, limit = int(parameters.get("start_after", "0"), 16), int(parameters["limit"])
        page = KEYS[start : start + limit]
        entries = [{"kind": "CREATE", "key": key} for key in page]
        more = {"truncated": True, "next_after": f"{start + limit:02x}"}
        return {
            **self.answer(job, "DONE"), "entries": entries,
            **(more if start + limit < len(KEYS) else {"truncated": False}),
        }  # fmt: skip

    def answer(self, job: str, state: str) -> dict[str, Any]:
        return {
            "job": job, "node": self.jobs[job][0], "state": state, "steps": 3, "steps_done": 1, "rows": 7, "found": {},
            "error": "", "message": "",
        }  # fmt: skip


def diff(nodes: Nodes, parameters: Mapping[str, str] = TWO, **options: Any) -> Pages[SnapshotDiffEntry]:
    found = SnapshotDiff(nodes, "/path", parameters, "the difference", pause=lambda _: None, **options)
    return Pages(found.page, "", None)


def keys(pages: Pages[SnapshotDiffEntry]) -> list[str]:
    return [entry.key for entry in pages.entries()]


def test_it_waits_until_the_job_is_done():
    seen: list[SnapshotDiffProgress] = []
    nodes = Nodes()
    assert keys(diff(nodes, on_progress=seen.append)) == KEYS
    assert [progress.state for progress in seen] == ["RUNNING", "RUNNING", "DONE"]
    assert str(seen[0]) == "RUNNING, 1 of 3 ranges, 7 rows read on n1"
    assert nodes.asked == ["n1"]


def test_looks_are_paced_up_to_a_second():
    nodes = Nodes(looks=8)
    pauses: list[float] = []
    found = SnapshotDiff(nodes, "/path", TWO, "the difference", pause=pauses.append)
    assert keys(Pages(found.page, "", None)) == KEYS
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    pauses.clear()
    nodes.down.add("n1")
    with pytest.raises(NotConnected, match="the difference: n1: refused"):
        found._looked("/v1/jobs/1", {})
    assert pauses == [0.02, 0.08, 0.32, 1.0], "after each failed look but the last"


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_pages(size: int):
    assert keys(diff(Nodes(), page_size=size)) == KEYS


def test_a_lost_job_is_begun_again_where_it_was():
    nodes = Nodes("n1", "n2")
    pages = diff(nodes, page_size=2)
    first = pages.next_page()
    assert first is not None
    nodes.down.add("n1")
    assert [entry.key for entry in first] + keys(pages) == KEYS
    assert nodes.asked == ["n1", "n2"]


def test_a_forgotten_job_is_begun_again():
    nodes = Nodes()
    pages = diff(nodes, page_size=2)
    pages.next_page()
    nodes.jobs.clear()
    assert keys(pages) == KEYS[2:]
    assert nodes.asked == ["n1", "n1"]


def test_a_bucket_as_it_is_now_is_not_compared_twice():
    nodes = Nodes()
    pages = diff(nodes, {"from": "one"}, page_size=2)
    pages.next_page()
    nodes.jobs.clear()
    with pytest.raises(RetryableError, match="the difference: the job is lost, and the bucket has changed since"):
        pages.next_page()
    pages = diff(nodes, {"from": "one"})  # before the first page it does not matter
    nodes.jobs.clear()
    assert keys(pages) == KEYS


def test_jobs_that_are_lost_again_and_again():
    class Forgetful(Nodes):
        def ask_at(self, *_: Any) -> dict[str, Any]:
            raise failure("SNAPSHOT_DIFF_NOT_FOUND", "forgotten")

    nodes = Forgetful()
    with pytest.raises(RetryableError, match=f"the difference: {MAX_BEGINS} jobs were lost, the last one: forgotten"):
        keys(diff(nodes))
    assert len(nodes.asked) == MAX_BEGINS


def test_a_node_that_fails_a_few_times_keeps_its_job():
    class Shaky(Nodes):
        failures = MAX_FAILED_LOOKS - 1

        def ask_at(self, *arguments: Any) -> dict[str, Any]:
            if self.failures:
                self.failures -= 1
                raise NotConnected("NOT_CONNECTED", "refused")
            return super().ask_at(*arguments)

    nodes = Shaky()
    assert keys(diff(nodes)) == KEYS
    assert nodes.asked == ["n1"]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"error": "FILE_NOT_FOUND", "message": "snapshot two has been deleted"}, NotFound, "two has been deleted"),
        ({"error": "DIFF_TOO_LARGE", "message": "too much"}, RequestFailed, "DIFF_TOO_LARGE: the difference: too much"),
        ({"error": "SNAPSHOT_UNREADABLE", "message": "damaged"}, RetryableError, "3 jobs were lost.*damaged"),
        ({"state": "CANCELLED"}, RequestFailed, "SNAPSHOT_DIFF_CANCELLED"),
        ({"state": "DONE", "entries": None}, RequestFailed, "INTERNAL_ERROR"),
        ({"state": "DONE", "entries": [{}]}, RequestFailed, "lack 'kind'"),
        ({"rows": None}, RequestFailed, "INTERNAL_ERROR"),
    ],
)
def test_a_job_that_failed(answer: dict[str, Any], error: type[Exception], words: str):
    nodes = Nodes()
    nodes.failing = answer
    with pytest.raises(error, match=words):
        keys(diff(nodes))


def test_whoever_stops_waiting_is_heard():
    def stop(_: SnapshotDiffProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keys(diff(Nodes(), on_progress=stop))


class TestCancelling:
    """A job by its id, on whichever node it is."""

    def test_it_is_found(self):
        nodes = Nodes("n1", "n2")
        nodes.down.add("n1")
        job = nodes.post_to_any("/path", TWO)[1]["job"]
        nodes.down.clear()
        assert snapshot_diffs.cancel(nodes, ["n1", "n2"], job).state == "CANCELLING"

    def test_nobody_has_it(self):
        with pytest.raises(NotFound, match="no node has a snapshot diff 0{32}"):
            snapshot_diffs.cancel(Nodes("n1", "n2"), ["n1", "n2"], "0" * 32)

    def test_a_node_that_does_not_answer_may_have_it(self):
        nodes = Nodes("n1", "n2")
        nodes.down.add("n2")
        with pytest.raises(NotConnected, match="no node that answers has snapshot diff 0{32}; n2: refused"):
            snapshot_diffs.cancel(nodes, ["n1", "n2"], "0" * 32)

"""Findings of the drill that changes keys under load, and how its writers go over to new keys."""

from __future__ import annotations

import threading
from typing import Any, Self

import pytest

from producers.errors import RequestFailed
from stratolog.drills.core.report import StepFailed
from stratolog.drills.keys import signed_load
from stratolog.drills.keys.core.rotation_findings import (
    all_there,
    certificates_are_new,
    nothing_refused,
    old_is_refused,
)
from stratolog.drills.keys.signed_load import SignedWriter


@pytest.mark.parametrize(
    ("finding", "holds", "seen"),
    [
        (nothing_refused({"brokers": 7, "door": 3}, []), True, "acknowledged: 7 by brokers, 3 by door"),
        (nothing_refused({"brokers": 7, "door": 0}, []), False, "acknowledged: 7 by brokers, 0 by door"),
        (nothing_refused({"brokers": 7}, ["by brokers: denied"]), False, "by brokers: denied"),
        (nothing_refused({}, []), False, "acknowledged: "),
        (all_there(["a", "b"], ["b", "a", "c"]), True, "2 keys"),
        (all_there(["a", "b"], ["a"]), False, "b"),
        (all_there([], ["a"]), False, "0 keys"),
        (old_is_refused({"the old secret": "PERMISSION_DENIED"}), True, "the old secret"),
        (old_is_refused({"the old secret": "PERMISSION_DENIED", "the old token": ""}), False, "taken: the old token"),
        (old_is_refused({}), False, ""),
        (certificates_are_new({"om1": "1", "dn1": "2"}, {"om1": "3", "dn1": "4"}), True, "2 servers"),
        (certificates_are_new({"om1": "1", "dn1": "2"}, {"om1": "3", "dn1": "2"}), False, "still the old one: dn1"),
        (certificates_are_new({"om1": "1"}, {}), False, "still the old one: om1"),
        (certificates_are_new({}, {}), False, "0 servers"),
    ],
)  # fmt: skip
def test_what_was_seen_is_judged(finding: Any, holds: bool, seen: str):
    assert (finding.holds, finding.seen) == (holds, seen)


class MemoryFile:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept."""

    def write(self, data: bytes) -> None:
        assert data


class PatientClient:
    """Writes, unless it fails; notes whether it was closed."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.closed = threading.Event()

    def open(self, path: str, mode: str) -> MemoryFile:
        assert path.startswith("/vol/bucket/the-door/")
        assert mode == "wb"
        if self.fails:
            raise RequestFailed("PERMISSION_DENIED", "no")
        return MemoryFile()

    def close(self) -> None:
        self.closed.set()


def test_a_writer_goes_over_to_a_new_client_and_closes_the_old_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signed_load, "PACE_S", 0.001)
    first: Any = PatientClient()
    second: Any = PatientClient()
    writer = SignedWriter("the door", ("vol", "bucket"), lambda: first)
    writer.wait_more(3)
    assert not first.closed.is_set()
    writer.change(lambda: second)
    assert first.closed.is_set()
    writer.stop()
    assert second.closed.is_set()
    assert len(set(writer.acknowledged)) == len(writer.acknowledged) >= 6
    assert writer.failures == []


def test_a_writer_that_is_refused_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signed_load, "PACE_S", 0.001)
    monkeypatch.setattr(signed_load, "WAIT_S", 0.2)
    refused: Any = PatientClient(fails=True)
    writer = SignedWriter("the door", ("vol", "bucket"), lambda: refused)
    with pytest.raises(StepFailed, match=r"by the door: 0 of 1 writes acknowledged; failed: .*PERMISSION_DENIED"):
        writer.wait_more(1)
    writer.stop()
    assert writer.failures
    assert writer.acknowledged == []

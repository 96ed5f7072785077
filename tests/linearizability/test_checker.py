"""The checker tells histories that can be explained from such that cannot: each illegal one is a legal one with a single lie in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.linearizability.checker import ILLEGAL, LINEARIZABLE, CheckerError, check
from tests.linearizability.history import Operation

Result = dict[str, Any] | str | None
PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "b1"}


class Script:
    """Writes a history: each call begins 10 after the one before and lasts 5, unless it is told otherwise."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.do("create_volume", "OK", volume="vol1")
        self.do("create_bucket", "OK", **PLACE)

    def do(
        self, op: str, result: Result, *, client: int = 0, begin: int | None = None, last: int = 5, **arguments: Any
    ) -> Script:
        called_ns = 10 * len(self.operations) if begin is None else begin
        outcome = {"code": result} if isinstance(result, str) else result
        self.operations.append(
            Operation(
                client=client, op=op, arguments=arguments, called_ns=called_ns,
                returned_ns=None if outcome is None else called_ns + last, result=outcome,
            )
        )  # fmt: skip
        return self

    def put(self, key: str, size: int, *, commit: Result = "OK", **place: Any) -> Script:
        where = {**PLACE, **place, "key": key}
        self.do("create_key", {"code": "OK", "session": 1000 + size}, **where)
        return self.do("commit_key", commit, session=1000 + size, size=size, **where)

    def inline(self, key: str, size: int, result: Result = "OK") -> Script:
        return self.do("put_key", result, key=key, size=size, **PLACE)

    def save(self, folder: Path, name: str = "history") -> Path:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(operation.to_line() + "\n" for operation in self.operations))
        return path


def verdict_of(program: Path, folder: Path, script: Script) -> str:
    return check(program, [script.save(folder)])[0].verdict


def read(size: int | None, data: int = 0) -> Result:
    """``data`` is what the bytes of an inline key say."""
    return "KEY_NOT_FOUND" if size is None else {"code": "OK", "size": size, "data": data}


# ------------------------------------------------------------------------------------------------------------- legal


def everything() -> Script:
    """Return a legal history with every operation and every refusal."""
    script = Script()
    script.do("create_volume", "VOLUME_ALREADY_EXISTS", volume="vol1").do(
        "create_bucket", "BUCKET_ALREADY_EXISTS", **PLACE
    )
    script.put("k1", 1).put("k1", 2).put("k2", 3)
    script.do("key_info", read(2), key="k1", **PLACE).do("key_info", read(None), key="k3", **PLACE)
    script.do("list_keys", {"code": "OK", "keys": {"k1": 2, "k2": 3}}, **PLACE)
    script.do("bucket_info", {"code": "OK", "count": 2, "bytes": 5}, **PLACE)
    script.do("rename_key", "KEY_ALREADY_EXISTS", key="k1", to="k2", **PLACE)
    script.do("rename_key", "KEY_NOT_FOUND", key="k4", to="k5", **PLACE)
    script.do("rename_key", "OK", key="k1", to="k3", **PLACE)
    script.do("key_info", read(2), key="k3", **PLACE).do("key_info", read(None), key="k1", **PLACE)
    script.do("commit_key", "KEY_NOT_FOUND", key="k1", session=1002, size=2, **PLACE)
    script.inline("k3", 4).do("key_info", read(4, data=4), key="k3", **PLACE)
    script.do("bucket_info", {"code": "OK", "count": 2, "bytes": 7}, **PLACE)
    script.do("rename_key", "OK", key="k3", to="k4", **PLACE).do("key_info", read(4, data=4), key="k4", **PLACE)
    script.put("k4", 5).do("key_info", read(5), key="k4", **PLACE).inline("k3", 6).do(
        "delete_key", "OK", key="k4", **PLACE
    )
    script.do("put_key", "BUCKET_NOT_FOUND", volume="vol1", bucket="b2", key="k", size=7)
    script.do("reserve_blocks", "BUCKET_NOT_FOUND", volume="vol1", bucket="b2")
    script.do("reserve_blocks", {"code": "OK", "session": 70}, **PLACE)
    script.do("commit_key", "KEY_NOT_FOUND", key="k3", session=70, size=8, **PLACE)  # of a key, not of a reservation
    script.do("commit_reserved", "OK", key="k3", session=70, size=8, **PLACE).do("key_info", read(8), key="k3", **PLACE)
    script.do("commit_reserved", "KEY_NOT_FOUND", key="k2", session=70, size=8, **PLACE)
    script.do("commit_reserved", "KEY_NOT_FOUND", key="k1", session=1002, size=8, **PLACE)
    script.do("reserve_blocks", {"code": "OK", "session": 71}, **PLACE)
    script.do("delete_bucket", "BUCKET_NOT_EMPTY", **PLACE).do("delete_volume", "VOLUME_NOT_EMPTY", volume="vol1")
    script.do("create_key", {"code": "OK", "session": 77}, key="k9", **PLACE)
    for key in ("k2", "k3"):
        script.do("delete_key", "OK", key=key, **PLACE)
    script.do("delete_key", "KEY_NOT_FOUND", key="k2", **PLACE).do("delete_bucket", "OK", **PLACE)
    script.do("commit_key", "BUCKET_NOT_FOUND", key="k9", session=77, size=9, **PLACE)
    script.do("create_bucket", "OK", **PLACE)
    script.do("commit_key", "KEY_NOT_FOUND", key="k9", session=77, size=9, **PLACE)  # a session of the old bucket
    script.do("commit_reserved", "KEY_NOT_FOUND", key="k9", session=71, size=9, **PLACE)
    script.do("volume_info", {"code": "OK", "count": 1}, volume="vol1")
    script.do("list_buckets", {"code": "OK", "buckets": ["b1"]}, volume="vol1")
    script.do("delete_bucket", "OK", **PLACE).do("key_info", "BUCKET_NOT_FOUND", key="k1", **PLACE)
    script.do("delete_volume", "OK", volume="vol1").do("list_keys", "VOLUME_NOT_FOUND", **PLACE)
    return script.do("create_bucket", "VOLUME_NOT_FOUND", **PLACE).do("volume_info", "VOLUME_NOT_FOUND", volume="vol1")


def test_a_history_with_every_operation_is_explained(program: Path, tmp_path: Path) -> None:
    assert verdict_of(program, tmp_path, everything()) == LINEARIZABLE


@pytest.mark.parametrize("seen", [1, 2])
def test_a_read_during_a_write_may_see_it_or_not(program: Path, tmp_path: Path, seen: int) -> None:
    script = Script().put("k1", 1).put("k1", 2)
    commit = script.operations[-1]
    script.do("key_info", read(seen), client=1, begin=commit.called_ns + 1, last=2, key="k1", **PLACE)
    assert verdict_of(program, tmp_path, script) == LINEARIZABLE


@pytest.mark.parametrize("seen", [[1, 1, 1], [1, 2, 2], [2, 2, 2]])
def test_an_unknown_outcome_may_come_at_any_time_or_never(program: Path, tmp_path: Path, seen: list[int]) -> None:
    script = Script().put("k1", 1).put("k1", 2, commit=None)
    for size in seen:
        script.do("key_info", read(size), client=1, key="k1", **PLACE)
    assert verdict_of(program, tmp_path, script) == LINEARIZABLE


# ------------------------------------------------------------------------------------------------------------ illegal


def stale_read() -> Script:
    return Script().put("k1", 1).put("k1", 2).do("key_info", read(1), client=1, key="k1", **PLACE)


def stale_listing() -> Script:
    return Script().put("k1", 1).do("list_keys", {"code": "OK", "keys": {}}, client=1, **PLACE)


def stale_counter() -> Script:
    return Script().put("k1", 1).do("bucket_info", {"code": "OK", "count": 0, "bytes": 0}, client=1, **PLACE)


def lost_write() -> Script:
    return Script().put("k1", 1).do("key_info", read(None), client=1, key="k1", **PLACE)


def lost_delete() -> Script:
    return Script().put("k1", 1).do("delete_key", "OK", key="k1", **PLACE).do("key_info", read(1), key="k1", **PLACE)


def read_back_in_time() -> Script:
    script = Script().put("k1", 1).put("k1", 2, commit=None)
    return script.do("key_info", read(2), key="k1", **PLACE).do("key_info", read(1), client=1, key="k1", **PLACE)


def rename_applied_twice() -> Script:
    script = Script().put("k1", 1).do("rename_key", "OK", key="k1", to="k2", **PLACE)
    script.do("delete_key", "OK", key="k2", **PLACE).put("k1", 2)
    return script.do("list_keys", {"code": "OK", "keys": {"k2": 2}}, **PLACE)


def unknown_commit_applied_twice() -> Script:
    script = Script().put("k1", 1, commit=None).do("key_info", read(1), key="k1", **PLACE)
    return script.do("delete_key", "OK", key="k1", **PLACE).do("key_info", read(1), key="k1", **PLACE)


def half_a_rename() -> Script:
    script = Script().put("k1", 1).do("rename_key", "OK", key="k1", to="k2", **PLACE)
    return script.do("list_keys", {"code": "OK", "keys": {"k1": 1, "k2": 1}}, **PLACE)


def wrong_error() -> Script:
    return Script().put("k1", 1).do("delete_key", "KEY_NOT_FOUND", key="k1", **PLACE)


def wrong_success() -> Script:
    return Script().put("k1", 1).do("delete_bucket", "OK", **PLACE)


def wrong_kind_of_error() -> Script:
    return Script().do("key_info", "VOLUME_NOT_FOUND", key="k1", **PLACE)


def error_of_nobody() -> Script:
    return Script().do("create_bucket", "INTERNAL_ERROR", volume="vol1", bucket="b2")


def volume_created_twice() -> Script:
    return Script().do("create_volume", "OK", client=1, volume="vol1")


def session_committed_twice() -> Script:
    return Script().put("k1", 1).do("commit_key", "OK", key="k1", session=1001, size=1, **PLACE)


def reserved_block_committed_twice() -> Script:
    script = Script().do("reserve_blocks", {"code": "OK", "session": 7}, **PLACE)
    for key in ("k1", "k2"):
        script.do("commit_reserved", "OK", key=key, session=7, size=1, **PLACE)
    return script


def effect_before_the_call() -> Script:
    script = Script().do("key_info", read(1), client=1, key="k1", **PLACE)
    return script.put("k1", 1)


def bytes_of_the_version_before() -> Script:
    return Script().inline("k1", 1).inline("k1", 2).do("key_info", read(2, data=1), key="k1", **PLACE)


def bytes_that_are_torn() -> Script:
    return Script().inline("k1", 1).do("key_info", read(1, data=-1), key="k1", **PLACE)


def bytes_that_are_missing() -> Script:
    return Script().inline("k1", 1).do("key_info", read(1), key="k1", **PLACE)


def bytes_beside_blocks() -> Script:
    return Script().inline("k1", 1).put("k1", 2).do("key_info", read(2, data=1), key="k1", **PLACE)


def lost_inline_write() -> Script:
    return Script().put("k1", 1).inline("k1", 2).do("key_info", read(1), client=1, key="k1", **PLACE)


ILLEGAL_SCRIPTS = [
    stale_read, stale_listing, stale_counter, lost_write, lost_delete, read_back_in_time, rename_applied_twice,
    unknown_commit_applied_twice, half_a_rename, wrong_error, wrong_success, wrong_kind_of_error, error_of_nobody,
    volume_created_twice, session_committed_twice, reserved_block_committed_twice, effect_before_the_call,
    bytes_of_the_version_before, bytes_that_are_torn, bytes_that_are_missing, bytes_beside_blocks, lost_inline_write,
]  # fmt: skip


def test_each_lie_is_found(program: Path, tmp_path: Path) -> None:
    files = [script().save(tmp_path, script.__name__) for script in ILLEGAL_SCRIPTS]
    verdicts = {verdict.history: verdict.verdict for verdict in check(program, files)}
    assert verdicts == {script.__name__: ILLEGAL for script in ILLEGAL_SCRIPTS}


def test_a_lie_in_one_volume_is_not_hidden_by_others(program: Path, tmp_path: Path) -> None:
    script = stale_read()
    for number in range(5):
        script.do("create_volume", "OK", client=2, volume=f"other-{number}")
    verdict = check(program, [script.save(tmp_path)])[0]
    assert (verdict.verdict, verdict.volumes) == (ILLEGAL, 6)
    assert [part["volume"] for part in verdict.illegal] == ["vol1"]


def test_the_illegal_part_is_shown(program: Path, tmp_path: Path) -> None:
    script = stale_read()
    lie = script.operations[-1]
    for _ in range(3):
        script.do("key_info", read(2), key="k1", **PLACE)
    found = check(program, [script.save(tmp_path)], report=tmp_path / "report")[0].illegal[0]
    assert (found["operation"], found["client"]) == ("key_info /vol1/b1/k1 -> OK size 1", 1)
    assert found["return"] == lie.returned_ns, "the return that nothing explains, not a later one"
    assert any("commit_key /vol1/b1/k1 size 2" in line for line in found["before"])
    assert json.loads((tmp_path / "report" / "history.vol1.json").read_text())["operation"] == found["operation"]
    assert "<html" in Path(found["report"]).read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "not an operation"),
        ('{"client":0,"op":"sing","args":{"volume":"v"},"call":1,"return":2,"result":{"code":"OK"}}', 'op "sing"'),
        ('{"client":0,"op":"delete_volume","args":{},"call":1,"return":2,"result":{"code":"OK"}}', "without a volume"),
        ('{"client":0,"op":"delete_volume","args":{"volume":"v"},"call":1,"return":2}', "only one of return and result"),
        ('{"client":0,"op":"delete_volume","args":{"volume":"v"},"call":3,"return":2,"result":{"code":"OK"}}', "before"),
        ('{"client":0,"op":"delete_volume","args":{"volume":"v"},"call":1,"return":2,"result":{}}', "without a code"),
        ('{"client":0,"op":"delete_volume","args":{"volume":"v"},"when":1}', 'unknown field "when"'),
    ],
)  # fmt: skip
def test_bad_input_is_named(program: Path, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(Script().operations[0].to_line() + "\n" + line + "\n")
    with pytest.raises(CheckerError, match=r"bad\.jsonl:2: ") as raised:
        check(program, [path])
    assert message in str(raised.value)


def test_a_missing_file_is_named(program: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckerError, match=r"nowhere\.jsonl"):
        check(program, [tmp_path / "nowhere.jsonl"])

"""What ``audit --once`` prints of shards, pipelines and stored bytes."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.codecs.block_rows import block_key
from stratolog.commands.audit import print_result


def entry(number: int, node: str, **changed: Any) -> dict[str, Any]:
    replica = {
        "node": node, "verdict": "equal", "basis": "incremental", "differing_slots": 0, "differences": [],
        "evidence": None, "reason": "",
    }  # fmt: skip
    return {
        "shard": number, "barrier_offset": 9, "index": 7, "log_digest": "0f", "log_chain": "", "oracle_digest": "0f",
        "oracle_rows": 3, "oracle_agrees": True, "late": False, "broken": None, "false_counters": [],
        "replicas": [replica],
    } | changed  # fmt: skip


def test_without_datanodes_nothing_is_said_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"ok": True, "shards": [entry(0, "om1")], "pipelines": []})
    text = capsys.readouterr().out
    assert "om1" in text
    assert "pipeline" not in text
    assert text.rstrip().endswith("equal")


def test_damaged_blocks_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    containers = [{"container_id": 300, "expected": 1, "found": 2, "blocks": [block_key(300, 12).hex()]}]
    members = [{"node": "dn3", "verdict": "diverged", "reason": "1 containers differ", "containers": containers}]
    blocks = {"log_offset": 9, "index": 7, "containers": 2, "members": members}
    print_result({"ok": False, "shards": [], "pipelines": [entry(44, "dn3", blocks=blocks)]})
    text = capsys.readouterr().out
    assert "pipeline 44, dn3: container 300 differs: block 300/12" in text
    assert text.rstrip().endswith("NOT EQUAL")


def test_a_container_without_named_blocks_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    containers: list[dict[str, Any]] = [{"container_id": 300, "expected": None, "found": 2, "blocks": []}]
    members = [{"node": "dn3", "verdict": "diverged", "reason": "", "containers": containers}]
    blocks = {"log_offset": 9, "index": 7, "containers": 0, "members": members}
    print_result({"ok": False, "shards": [], "pipelines": [entry(44, "dn3", blocks=blocks)]})
    assert "container 300 differs: blocks not named by the datanode" in capsys.readouterr().out

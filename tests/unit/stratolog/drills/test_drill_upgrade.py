"""Mixed versions in one shard, over real RocksDB: late validation diverges and is located, leader-side execution does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schemas import result_codes as codes
from schemas.records.messages import CreateBucket, CreateKey, CreateVolume
from stratolog.configuration.settings import Settings
from stratolog.drills import rolling_upgrade
from stratolog.drills.core import version_findings
from stratolog.drills.core.report import PASSED
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.session import run
from stratolog.drills.rolling_upgrade import DIRECTIONS, ODD, Direction, mixed
from stratolog.drills.two_versions import NEXT, THIS, mixed_shard


def test_the_drill_passes_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster(settings=Settings(data_dir=tmp_path))
    report = run("rolling-upgrade", None, lambda s: rolling_upgrade.run(s, cluster), data_dir=tmp_path)
    assert report.verdict == PASSED, report.reason
    assert len(report.findings) == 4
    assert list((tmp_path / "drills").iterdir()) == []
    said = " ".join(finding.seen for finding in report.findings)
    for word in ("first at index", "bucketTable /drill/bucket", "with//gap", f"{ODD} differs"):
        assert word in said


@pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda direction: direction.name)
def test_where_late_validation_diverges(direction: Direction, tmp_path: Path) -> None:
    late = mixed(tmp_path / "late", direction, late=True)
    assert late.odd == (ODD,)
    assert late.evidence == (), "no replica can tell by itself: the log claims nothing"
    keys = {(cf, key) for cf, _, key in late.rows}
    assert ("bucketTable", "/drill/bucket") in keys
    assert any("with//gap" in key for cf, key in keys if cf in ("keyTable", "openKeyTable"))
    assert not any("dir/renamed" in key for _, key in keys), "what both versions do alike is equal"
    assert {slot for _, slot, _ in late.rows} == set(late.slots)
    led = mixed(tmp_path / "led", direction, late=False)
    assert (led.odd, led.rows, led.slots, led.first_index) == ((), (), (), None)


def test_equal_versions_do_not_diverge_in_either_mode(tmp_path: Path) -> None:
    for version in (THIS, NEXT):
        same = Direction(name=version, versions=dict.fromkeys(("om1", "om2", ODD), version))
        for late in (True, False):
            seen = mixed(tmp_path / f"{version}-{late}", same, late=late)
            assert version_findings.leader_side_holds(version, seen).holds
            assert not version_findings.late_diverges(version, ODD, seen).holds, (
                "a drill that shows nothing does not pass"
            )


def test_the_versions_differ_in_what_they_say_they_do(tmp_path: Path) -> None:
    for version, expected in ((THIS, codes.OK), (NEXT, codes.INVALID_KEY_NAME)):
        for late in (True, False):
            with mixed_shard(tmp_path / f"{version}-{late}", {"om1": version}, late=late) as shard:
                shard.do(CreateVolume(volume="vol1"))
                shard.do(CreateBucket(volume="vol1", bucket="bucket1"))
                answer = shard.do(CreateKey(volume="vol1", bucket="bucket1", key="a//b", size=0))
                assert answer.status == expected
                assert shard.do(CreateKey(volume="vol1", bucket="bucket1", key="a/b", size=0)).status == codes.OK


def test_what_a_mixed_shard_is_judged_by(tmp_path: Path) -> None:
    late = mixed(tmp_path / "late", DIRECTIONS[0], late=True)
    assert version_findings.late_diverges("x", ODD, late).holds
    for wrong in (
        replace(late, odd=("om2",)), replace(late, rows=()), replace(late, rows=late.rows[:1]),
        replace(late, first_index=None), replace(late, scanned=False),
    ):  # fmt: skip
        assert not version_findings.late_diverges("x", ODD, wrong).holds
    led = mixed(tmp_path / "led", DIRECTIONS[0], late=False)
    assert version_findings.leader_side_holds("x", led).holds
    for wrong in (
        replace(led, odd=(ODD,)), replace(led, rows=late.rows), replace(led, first_index=3), replace(led, requests=0),
        replace(led, evidence=(ODD,)), replace(led, scanned=False),
    ):  # fmt: skip
        assert not version_findings.leader_side_holds("x", wrong).holds

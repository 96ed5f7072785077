"""Installs in words: those that are done, from a node's status; those that run, from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stratolog.cluster.installs import MAX_SHOWN_CHARACTERS, install_words, installing, installs_in
from stratolog.configuration.settings import Settings
from stratolog.drills.core import install_findings
from stratolog.drills.core.install_findings import ScannedDigest

SAID: dict[str, Any] = {
    "peer": "om1", "leader": "om3", "term": 4, "index": 90, "offset": 77, "rounds": 2, "fetched_bytes": 3 * 1024,
    "saved_bytes": 5 * 1024 * 1024, "took_s": 1.25,
}  # fmt: skip
WORDS = "that of om1 at offset 77, in 2 rounds: 3.0 KiB fetched, 5.0 MiB saved by exclusion, 1.25 s"


def test_what_a_node_has_installed():
    assert install_words(SAID) == WORDS
    status = {"shards": [{"shard": 0, "installed": SAID}, {"shard": 1, "installed": None}, {"shard": 2}]}
    assert list(installs_in("om2", status)) == [f"om2, shard 0: installed a peer's checkpoint, {WORDS}"]
    assert list(installs_in("om2", None)) == []


def test_what_a_node_is_installing(tmp_path: Path):
    settings = replace(Settings(), data_dir=tmp_path)
    assert installing(settings, "om1") == []
    folder = settings.node_folder("om1")
    for shard, text in ((0, b"fetches: 1 of 2"), (1, b"x" * 5_000), (2, b"\xff\xfe")):
        (folder / f"shard-{shard}.candidate").mkdir(parents=True)
        (folder / f"shard-{shard}.candidate" / "progress.txt").write_bytes(text)
    assert installing(settings, "om1") == ["fetches: 1 of 2", "x" * MAX_SHOWN_CHARACTERS]


def test_findings():
    assert install_findings.installed("om2", SAID, WORDS, 77).holds
    assert not install_findings.installed("om2", SAID, WORDS, 78).holds
    none = install_findings.installed("om2", None, "", 0)
    assert (none.holds, none.seen) == (False, "it has installed none")
    assert install_findings.saved(SAID).holds
    assert not install_findings.saved(None).holds
    assert not install_findings.saved(SAID | {"saved_bytes": 0}).holds
    one = ScannedDigest(index=5, scanned="aa", incremental="aa")
    assert install_findings.scans_equal({"om1": one, "om2": one}).holds
    for other in (
        ScannedDigest(index=6, scanned="aa", incremental="aa"), ScannedDigest(index=5, scanned="bb", incremental="bb"),
        ScannedDigest(index=5, scanned="aa", incremental="bb"),
    ):  # fmt: skip
        assert not install_findings.scans_equal({"om1": one, "om2": other}).holds
    assert not install_findings.scans_equal({}).holds

"""``ingest``: its bar at any width, and the names of the places in its text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from producers.bulk.ingest import IngestSummary
from producers.bulk.ingest import Progress as Step
from producers.bulk.tree_layout import OneBucket
from stratolog.commands.ingest import SHOWN_PLACES, bar_on, print_summary

STEP = Step(files=12_345, files_total=67_890, bytes=123_456_789, bytes_total=10**12, requests=99_999, elapsed_s=7.0)


@pytest.mark.parametrize("width", [40, 60, 76, 80, 100, 110, 200])
def test_the_bar_leaves_room_for_its_words(width: int) -> None:
    """At 80 columns there was room for the bar, and none for how far it is."""
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with bar_on(console) as told:
        told(STEP)
    last = output.getvalue().replace("\r", "\n").splitlines()
    shown = [line for line in last if "12,345 of 67,890 files" in line]
    assert shown, output.getvalue()
    assert all("…" not in line for line in shown)
    assert all(len(line) <= width for line in shown)
    assert ("117.7 MB" in shown[-1]) == (width >= 76)
    assert ("requests/s" in shown[-1]) == (width >= 110)


def summary(places: list[tuple[str, str]], *, bytes_per_second: float = 0.0) -> IngestSummary:
    return IngestSummary(
        keys=1, bytes=1, requests=4, seconds=1.0, requests_per_second=4.0, files_per_second=1234.5,
        bytes_per_second=bytes_per_second, p50_ms=1.0, p99_ms=1.0, max_ms=1.0, places=places, failed_files=0, failures=[],
        skipped_files=0, skipped=[],
    )  # fmt: skip


def test_the_text_tells_the_rates(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summary([], bytes_per_second=2.5 * 1024 * 1024))
    assert "1,234.5 files/s, 2.50 MiB/s, 4 requests/s" in capsys.readouterr().out
    print_summary(summary([]))
    assert "1,234.5 files/s, 4 requests/s" in capsys.readouterr().out, "metadata alone has no bytes to tell of"


def test_the_text_names_the_places(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summary([("tree-0", "lib"), ("tree-0", "root"), ("tree-3", "lib")]))
    said = capsys.readouterr().out
    assert "/tree-0: lib, root\n" in said
    assert "/tree-3: lib\n" in said


def test_many_places_are_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summary([(f"tree-{n:02}", "lib") for n in range(SHOWN_PLACES + 4)]))
    said = capsys.readouterr().out
    assert "... and 4 more volumes" in said
    assert f"/tree-{SHOWN_PLACES}: " not in said


def test_one_bucket_takes_every_file() -> None:
    rule = OneBucket(volume="vol1", bucket="bucket1")
    assert {rule.bucket_for(path) for path in ("a", "a/b", "Ünder/x y", "root/z")} == {("vol1", "bucket1")}
    for wrong in ("", "/a"):
        with pytest.raises(ValueError, match="relative path"):
            rule.bucket_for(wrong)
    with pytest.raises(UnicodeEncodeError):
        rule.bucket_for("\udcff")

"""Whom to ask about a copy: named last, asked first; a file that is no more than a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from datanode_processors.repair.copy_sources import MAX_SOURCES, CopySources


def test_they_are_found_again_after_a_start(tmp_path: Path):
    sources = CopySources(tmp_path / "file")
    sources.add(7, ["a:1", "b:1"])
    sources.add(7, ["c:1", "a:1"])
    sources.add(8, ["d:1"])
    assert sources.of(7) == ("c:1", "a:1", "b:1")
    sources.save(lambda _: True)
    assert CopySources(tmp_path / "file").of(7) == ("c:1", "a:1", "b:1")
    assert CopySources(tmp_path / "file").of(9) == ()


def test_containers_that_have_gone_are_forgotten_and_addresses_are_bounded(tmp_path: Path):
    sources = CopySources(tmp_path / "file")
    sources.add(7, ["a:1"])
    sources.add(8, [f"h:{number}" for number in range(100)])
    sources.save(lambda container_id: container_id == 8)
    assert sources.of(7) == ()
    assert len(CopySources(tmp_path / "file").of(8)) == MAX_SOURCES


def test_nothing_is_written_if_nothing_has_changed(tmp_path: Path):
    sources = CopySources(tmp_path / "file")
    sources.add(7, ["a:1"])
    sources.save(lambda _: True)
    (tmp_path / "file").unlink()
    sources.add(7, ["a:1"])
    sources.save(lambda _: True)
    assert not (tmp_path / "file").exists()


def test_nobody_waits_while_it_is_asked_what_is_here_and_what_comes_then_is_kept(tmp_path: Path):
    sources = CopySources(tmp_path / "file")
    for container_id in (7, 8, 9):
        sources.add(container_id, ["a:1"])

    def is_here(_: int) -> bool:
        assert sources.of(8) == ("a:1",)
        sources.add(8, ["a:1"])  # it is fetched just now
        sources.add(9, ["b:1"])
        return False

    sources.save(is_here)
    assert [sources.of(container_id) for container_id in (7, 8, 9)] == [(), ("a:1",), ("b:1", "a:1")]
    assert CopySources(tmp_path / "file").of(9) == ("b:1", "a:1")


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"7": 5}', "\x00"])
def test_a_file_that_is_none_is_as_good_as_no_file(tmp_path: Path, text: str):
    (tmp_path / "file").write_text(text)
    assert CopySources(tmp_path / "file").of(7) == ()


def test_what_could_not_be_written_is_written_later(tmp_path: Path):
    sources = CopySources(tmp_path / "away" / "file")
    sources.add(7, ["a:1"])
    with pytest.raises(OSError):
        sources.save(lambda _: True)
    (tmp_path / "away").mkdir()
    sources.save(lambda _: True)
    assert CopySources(tmp_path / "away" / "file").of(7) == ("a:1",)

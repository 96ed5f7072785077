"""What docs/architecture.md says of folders and functions is so: every room is in its tables, and the trips name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "build_tools")

ROOMS = re.compile(r"\| room of `(\w+)/` \|.*\n\|[-|]+\|\n((?:\|.*\n)+)")
ROW = re.compile(r"\| `([\w/]+)` \| (.+?) \| (.*?) ?\|")
STEP = re.compile(r"\| \d+ \| `([\w/]+)` \| .+ \| (.+) \|")
PLACE = re.compile(r"`([\w/]+\.py):(\w+)`")
PATH = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w./]+)`")


def rooms() -> dict[str, list[str]]:
    """Return each package's rooms, in the order of its table."""
    return {package: [row[0] for row in ROW.findall(table)] for package, table in ROOMS.findall(ARCHITECTURE)}


def rooms_on_disk(package: str) -> set[str]:
    """Return a package's folders with modules; a ``core`` below another room is a part of that room."""
    found = {str(path.parent.relative_to(ROOT / package)) for path in (ROOT / package).rglob("*.py")}
    return {room for room in found if room not in {".", "core"} and not room.endswith("/core")}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_in_its_packages_table(package: str) -> None:
    assert set(rooms()[package]) == rooms_on_disk(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_imports_only_what_stands_above_it_in_the_table(package: str) -> None:
    table = next(table for name, table in ROOMS.findall(ARCHITECTURE) if name == package)
    above: set[str] = {"core"}
    for room, _, imports in ROW.findall(table):
        named = set(re.findall(r"`([\w/]+)`", imports))
        assert named <= above, room
        above.add(room)


def steps() -> list[tuple[str, str, str]]:
    return [(folder, *place) for folder, places in STEP.findall(ARCHITECTURE) for place in PLACE.findall(places)]


@pytest.mark.parametrize(("folder", "module", "name"), steps())
def test_a_trip_names_what_is_there(folder: str, module: str, name: str) -> None:
    assert re.search(rf"^\s*(async )?(def|class) {name}\b", (ROOT / folder / module).read_text(), re.MULTILINE)


def test_there_are_three_trips_and_none_comes_back_to_a_room() -> None:
    trips = ARCHITECTURE.partition("## Three trips")[2].partition("\n## ")[0].split("\n**A ")[1:]
    assert [len(STEP.findall(trip)) for trip in trips] == [11, 4, 2]
    for trip in trips:
        folders = [folder for folder, _ in STEP.findall(trip)]
        assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_paths_that_a_page_names_exist(page: Path) -> None:
    assert [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []

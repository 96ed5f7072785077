"""What code and documents cite is there: sections of the design, decision records, and the files that links name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("*/__init__.py"))
CODE = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]
PAGES = [
    *(ROOT / f"{page}.md" for page in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SECTION = re.compile(r"design(?:'s|,)?\s+sections?\s+(\d+(?:(?:,| and|, and)\s+\d+)*)")
DECISION = re.compile(r"decisions?\s+(\d{4}(?:(?:,| and|, and)\s+\d{4})*)")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def cited(pattern: re.Pattern[str], path: Path) -> set[str]:
    text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())
    return {number for found in pattern.findall(text) for number in re.findall(r"\d+", found)}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_pattern_finds_every_form_of_a_citation(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text("(design, section 4). See the design, sections 3, 4 and\n    10; decisions 0002 and 0014.")
    assert cited(SECTION, page) == {"3", "4", "10"}
    assert cited(DECISION, page) == {"0002", "0014"}


@pytest.mark.parametrize("path", CODE + PAGES, ids=name)
def test_each_section_of_the_design_that_is_cited_exists(path: Path) -> None:
    sections = set(re.findall(r"^## (\d+)\. ", (ROOT / "docs/design.md").read_text(), re.MULTILINE))
    assert cited(SECTION, path) <= sections


@pytest.mark.parametrize("path", CODE + PAGES, ids=name)
def test_each_decision_that_is_cited_exists(path: Path) -> None:
    assert cited(DECISION, path) <= {record.name[:4] for record in (ROOT / "docs/decisions").glob("0*.md")}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_each_file_that_a_page_links_to_exists(path: Path) -> None:
    assert not [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]


def test_every_decision_record_is_in_the_index() -> None:
    records = {record.name for record in (ROOT / "docs/decisions").glob("0*.md")}
    assert records == set(re.findall(r"\((0\d{3}[^)]*\.md)\)", (ROOT / "docs/decisions/README.md").read_text()))

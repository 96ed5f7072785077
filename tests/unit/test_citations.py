"""What code and documents cite is there: sections of the design, decision records, and the files that links name.

A rule is one test, which names every page that breaks it: a test for each page and rule would be two thousand.
"""

import re
from functools import cache
from pathlib import Path

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


@cache
def in_one_line(path: Path) -> str:
    """Return the text of a file without its line ends, and without the hashes of comments that go on."""
    return re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())


def cited(pattern: re.Pattern[str], path: Path) -> set[str]:
    return {number for found in pattern.findall(in_one_line(path)) for number in re.findall(r"\d+", found)}


def cited_but(existing: set[str], pattern: re.Pattern[str]) -> dict[str, set[str]]:
    """Return what is cited and does not exist, by the file that cites it."""
    return {name(path): missing for path in CODE + PAGES if (missing := cited(pattern, path) - existing)}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_pattern_finds_every_form_of_a_citation(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text("(design, section 4). See the design, sections 3, 4 and\n    10; decisions 0002 and 0014.")
    assert cited(SECTION, page) == {"3", "4", "10"}
    assert cited(DECISION, page) == {"0002", "0014"}


def test_what_is_looked_into_is_there() -> None:
    assert len(CODE) > 700
    assert len(PAGES) > 100


def test_each_section_of_the_design_that_is_cited_exists() -> None:
    sections = set(re.findall(r"^## (\d+)\. ", (ROOT / "docs/design.md").read_text(), re.MULTILINE))
    assert cited_but(sections, SECTION) == {}


def test_each_decision_that_is_cited_exists() -> None:
    assert cited_but({record.name[:4] for record in (ROOT / "docs/decisions").glob("0*.md")}, DECISION) == {}


def test_each_file_that_a_page_links_to_exists() -> None:
    missing = {
        name(page): [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
        for page in PAGES
    }
    assert {page: targets for page, targets in missing.items() if targets} == {}


def test_every_decision_record_is_in_the_index() -> None:
    records = {record.name for record in (ROOT / "docs/decisions").glob("0*.md")}
    assert records == set(re.findall(r"\((0\d{3}[^)]*\.md)\)", (ROOT / "docs/decisions/README.md").read_text()))

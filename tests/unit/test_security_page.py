"""docs/security.md: every threat, and every sentence, has a test that exists and would fail without it.

A changed sentence shows the tests that hold it, and a new one needs some: ``security_sentences.txt`` has them.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
SENTENCES = ROOT / "tests" / "unit" / "security_sentences.txt"
TABLE = re.compile(r"^\| threat \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)
CODE = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.:?])\s+(?=[A-Z`])")
NO_TEST = {"no promise", "says how"}
"""What stands below a sentence that no test could hold."""


def there() -> set[str]:
    """Return the names of all tests."""
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }


def threats() -> list[tuple[str, str]]:
    """Return each threat and what its line says of a test."""
    rows = [line for table in TABLE.findall(PAGE.read_text()) for line in table.splitlines()]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return [(cell[0], cell[-1].strip(" |")) for cell in cells]


def sentences() -> list[str]:
    """Return the sentences of the page, without tables, headings and code."""
    paragraphs: list[list[str]] = [[]]
    for line in CODE.sub("\n", PAGE.read_text()).splitlines():
        if not line.strip() or line.startswith(("#", "|", "- ")):
            paragraphs.append([])
        if line.strip() and not line.startswith(("#", "|")):
            paragraphs[-1].append(line.strip().removeprefix("- "))
    return [found for lines in paragraphs if lines for found in END.split(LINK.sub(r"\1", " ".join(lines)))]


def held() -> list[tuple[str, list[str]]]:
    """Return what the table says: a sentence, and the tests below it."""
    found: list[tuple[str, list[str]]] = []
    for line in SENTENCES.read_text().splitlines():
        if line.startswith("    "):
            found[-1][1].append(line.strip())
        elif line and not line.startswith("#"):
            found.append((line, []))
    return found


def test_every_threat_names_a_test_that_exists() -> None:
    tests, found = there(), threats()
    assert len(found) > 10
    named: list[str] = []
    for threat, test in found:
        named = named if test in ("the same", "likewise") else re.findall(r"`(\w+)`", test)
        assert named, f"{threat}: {test}"
        assert set(named) <= tests, f"{threat}: {test}"


def test_every_sentence_has_its_test() -> None:
    table = held()
    said, kept = Counter(sentences()), Counter(sentence for sentence, _ in table)
    assert list((said - kept).elements()) == [], f"say in {SENTENCES.name} which tests fail without them"
    assert list((kept - said).elements()) == [], "the page does not say this any more"
    tests = there()
    for sentence, names in table:
        assert names, sentence
        assert set(names) <= tests or (len(names) == 1 and names[0] in NO_TEST), f"{sentence}: {names}"


def test_most_sentences_are_held_by_tests() -> None:
    """Not by a word that they promise nothing."""
    table = held()
    assert sum(1 for _, names in table if names[0] not in NO_TEST) > 0.6 * len(table)

"""The reference is what the code says, and commands in the docs are commands: nothing runs here, everything is parsed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

from build_tools.reference.__main__ import FOLDER, PAGES
from build_tools.reference.metrics import families
from build_tools.reference.topics import USES
from build_tools.site_pages import PROJECT, with_links
from schemas import topics
from stratolog.cli import build_app
from stratolog.commands.common.helps import tidied

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^( *)```(?:sh|toml|)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(?:[A-Z_]+=\S+ )*(?:docker compose exec \w+ |\.venv/bin/)?(stratolog .*)$")
APP = tidied(build_app())
WrongUsage: Any = typer.BadParameter.__base__
"""What a command line is refused with; typer names its kinds alone."""


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text() == PAGES[name](), "make reference"


def test_there_is_no_other_page_of_reference() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


def test_a_metric_has_one_name_and_one_meaning() -> None:
    found = [one[0] for one in families()]
    assert len(set(found)) == len(found)
    for name, kind, text, labels in families():
        assert re.fullmatch(r"stratolog_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind in {"counter", "gauge", "histogram"}
        assert text.endswith(".")
        assert len(set(labels)) == len(labels)


def test_every_topic_has_its_use() -> None:
    ours = {value for name, value in vars(topics).items() if re.fullmatch(r"(OM|DN)_[A-Z]+", name)}
    assert ours == set(USES)


# -- commands in pages -------------------------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Return the pages that tell a reader what to type; histories and decisions tell what was typed once."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def commands(page: Path) -> Iterator[str]:
    for _, block in FENCED.findall(page.read_text()):
        for line in block.splitlines():
            if found := COMMAND.match(line):
                yield found[1]


def told() -> list[Any]:
    found = [(page, command) for page in pages() for command in commands(page)]
    return [pytest.param(command, id=f"{page.name}: {command}") for page, command in found]


def parse(words: list[str]) -> None:
    """Parse a command as the shell would give it; raises WrongUsage for one that is refused, KeyError for none."""
    group: Any = APP
    if words == ["--version"]:
        group.make_context("stratolog", words)
    while getattr(group, "commands", None):
        while words[0].startswith("-"):  # an option of the group, with its value
            options = {name for one in group.params for name in one.opts}
            assert words[0] in options, words[0]
            del words[:2]
        group = group.commands[words.pop(0)]
    group.make_context(group.name, words)


@pytest.mark.parametrize("command", told())
def test_a_command_in_a_page_is_one(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()  # what pages ingest
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command, comments=True)[1:]
    if words[-1:] in (["..."], ["…"]):  # a command that goes on
        words.pop()
    with suppress(typer.Exit):  # --help, --version
        parse(words)


def test_pages_have_commands_and_wrong_ones_are_seen() -> None:
    assert len(told()) > 60
    for wrong in (["sh", "key", "puts", "/a/b/c", "x"], ["up", "--brokers", "many"], ["audit", "--onse"]):
        with pytest.raises((WrongUsage, KeyError)):
            parse(list(wrong))


# -- the site ----------------------------------------------------------------------------------------------------------


def test_every_page_is_on_the_site() -> None:
    """The build refuses a page that is in no menu and a menu's page that is not there; it is a slow test."""
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]:
        assert re.search(rf"[ :]{path.relative_to(DOCS)}$", menu, re.MULTILINE), path.name
    assert all(f": {place}" in menu for place in PROJECT.values())


@pytest.mark.parametrize(
    ("place", "link", "turned"),
    [
        ("quickstart.md", "[r](../README.md)", "[r](project/readme.md)"),
        ("decisions/README.md", "[d](../design.md#x)", "[d](../design.md#x)"),
        ("project/readme.md", "[d](docs/design.md)", "[d](../design.md)"),
        ("project/readme.md", "[c](CONTRIBUTING.md)", "[c](contributing.md)"),
        ("project/readme.md", "[LICENSE](LICENSE)", "`LICENSE`"),
        ("quickstart.md", "[examples](../examples)", "`examples`"),
        ("quickstart.md", "[all of them](../examples)", "all of them (`examples`)"),
        ("quickstart.md", "[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("quickstart.md", "[a](#b)", "[a](#b)"),
        ("quickstart.md", "[a](../nothing.md)", "[a](../nothing.md)"),
        ("quickstart.md", "```\n[r](../README.md)\n```", "```\n[r](../README.md)\n```"),
    ],
)
def test_links_lead_to_the_sites_pages(place: str, link: str, turned: str) -> None:
    assert with_links(link, place) == turned


def test_links_of_all_pages_lead_somewhere() -> None:
    for path in [*pages(), *DOCS.glob("*/*.md")]:
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"

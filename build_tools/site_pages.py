"""A hook of MkDocs: the pages outside docs/ that belong to the site, and links to what is no page.

In the repository a page may link to anything. On the site, links to the pages of :data:`PROJECT` lead to those pages. A
link to another file of the repository becomes the file's path, as code: the site does not hold the sources.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROJECT = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""Pages of the repository's top, and where they are on the site."""

LINK = re.compile(r"\[([^\]\[]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of PROJECT."""
    from mkdocs.structure.files import File

    for source, place in PROJECT.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with its links turned to the site's places."""
    return with_links(markdown, page.file.src_uri)


def with_links(markdown: str, place: str) -> str:
    """Turn the links of the page at ``place`` of the site; what stands in code stays."""
    source = next((ROOT / name for name, where in PROJECT.items() if where == place), DOCS / place)
    lines, in_code = [], False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        lines.append(line if in_code else LINK.sub(lambda found: _turned(found, source, place), line))
    return "\n".join(lines)


def _turned(found: re.Match[str], source: Path, place: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    meant = Path(os.path.normpath(source.parent / target))
    where = meant.relative_to(ROOT).as_posix() if meant.is_relative_to(ROOT) else None
    if where in PROJECT:
        on_site = PROJECT[where]
    elif where is not None and meant.suffix == ".md" and meant.is_relative_to(DOCS):
        on_site = meant.relative_to(DOCS).as_posix()
    elif where is not None and meant.exists():
        return f"{text} (`{where}`)" if text.strip("`") != where else f"`{where}`"
    else:
        return found[0]  # the build complains of it
    return f"[{text}]({os.path.relpath(on_site, os.path.dirname(place) or '.')}{anchor})"

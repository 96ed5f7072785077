"""Write all reference pages: ``python -m build_tools.reference``."""

from __future__ import annotations

import os
from pathlib import Path

from build_tools.reference.access import access_page
from build_tools.reference.commands import commands_page
from build_tools.reference.metrics import metrics_page
from build_tools.reference.schemas import schemas_page
from build_tools.reference.settings import settings_page
from build_tools.reference.topics import topics_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES = {
    "commands": commands_page, "settings": settings_page, "metrics": metrics_page, "schemas": schemas_page,
    "topics": topics_page, "access": access_page,
}  # fmt: skip


def main() -> None:
    """Write the pages that are not as they should be, and say which."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        path, text = FOLDER / f"{name}.md", make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(os.path.relpath(path))


if __name__ == "__main__":
    main()

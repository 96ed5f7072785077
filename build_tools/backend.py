"""The build backend of pyproject.toml (PEP 517): setuptools, which builds a wheel from a tree of its own.

A wheel is built in a temporary folder, from the tree that ``layout`` makes of the sources; nothing is left behind in
the repository. An sdist and an editable installation keep the repository's layout. An sdist contains this folder
(MANIFEST.in), so the same wheel can be built from it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta

from build_tools.layout import make_tree

Settings = Mapping[str, Any] | None

build_sdist = build_meta.build_sdist
build_editable = build_meta.build_editable
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_editable = build_meta.get_requires_for_build_editable


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return no requirements: pyproject.toml names all of them.

    To find that out, setuptools would write its metadata into the repository.
    """
    del config_settings
    return []


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel into ``wheel_directory`` and return its name."""
    into = os.path.abspath(wheel_directory)
    metadata = os.path.abspath(metadata_directory) if metadata_directory else None
    with _wheel_tree():
        return str(build_meta.build_wheel(into, config_settings, metadata))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the wheel's metadata into ``metadata_directory`` and return the name of its folder."""
    into = os.path.abspath(metadata_directory)
    with _wheel_tree():
        return str(build_meta.prepare_metadata_for_build_wheel(into, config_settings))


@contextlib.contextmanager
def _wheel_tree() -> Iterator[None]:
    """Work in the wheel's tree, made from the current folder: a hook is called in the folder of the sources."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="stratolog-wheel-") as folder:
        make_tree(root, Path(folder))
        with contextlib.chdir(folder):
            yield

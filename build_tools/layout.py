"""The wheel's tree: a copy of the sources with every package of ours below ``stratolog``, and its setup.py.

The tree holds the packages that pyproject.toml names (``tool.setuptools.packages.find``) and the files that its
``project`` table reads. Compiled and cached files are left out. The tree's ``setup.py`` is made from the tables of
``tool.setuptools``; an unknown table is refused (:class:`UnknownLayout`), not dropped.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build_tools.rewriting import HOME, SourceMover, module_names

LEFT_BEHIND = ("__pycache__", "*.so", "*.pyd", "*.c", "*.egg-info")
"""Built from the sources, here or in the wheel."""

BESIDE = ("README.md", "LICENSE")
"""Files that the ``project`` table reads."""

_KNOWN = frozenset({"ext-modules", "packages", "package-data", "package-dir"})


class UnknownLayout(ValueError):
    """The tree or pyproject.toml says something for which the wheel's tree has no counterpart."""


def make_tree(root: Path, into: Path) -> None:
    """Copy the sources at ``root`` into the empty folder ``into``, as the wheel has them, ready for setuptools.

    Raises UnknownLayout, or NotMovable of ``rewriting``; a file's own errors pass through.
    """
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    told = tables["tool"]["setuptools"]
    packages = _packages(told)
    _check_entry_points(tables["project"], packages)
    home = into / HOME
    _copy(root / HOME, home)
    for name in packages:
        if (home / name).exists() or (home / f"{name}.py").exists():
            raise UnknownLayout(f"{HOME}/{name} is there already: {name} cannot be put below {HOME}")
        _copy(root / name, home / name)
    _rewrite(root, home, packages)
    for name in BESIDE:
        shutil.copy(root / name, into)
    (into / "pyproject.toml").write_text(_without_tools(text), encoding="utf-8")
    (into / "setup.py").write_text(_setup(into, told, packages), encoding="utf-8")


def _packages(told: Mapping[str, Any]) -> list[str]:
    """Return the packages that move."""
    if unknown := sorted(told.keys() - _KNOWN):
        raise UnknownLayout(f"pyproject.toml: tool.setuptools has {', '.join(unknown)}, which {__name__} does not know")
    if told.get("package-dir", {"": "."}) != {"": "."}:
        raise UnknownLayout("pyproject.toml: package-dir must be '.': the packages lie at the top")
    find = told["packages"]["find"]
    if find.keys() != {"include"} or f"{HOME}*" not in find["include"]:
        raise UnknownLayout(f"pyproject.toml: packages.find must be 'include' alone, with '{HOME}*'")
    return sorted(name.removesuffix("*") for name in find["include"] if name != f"{HOME}*")


def _check_entry_points(project: Mapping[str, Any], packages: Sequence[str]) -> None:
    """Raise UnknownLayout for a command, or another entry point, in a package that moves.

    setuptools takes an entry point as it is written, so in the wheel it would name a module that is not there.
    """
    groups = [project.get("scripts", {}), project.get("gui-scripts", {}), *project.get("entry-points", {}).values()]
    for name, place in (entry for group in groups for entry in group.items()):
        if place.partition(".")[0].partition(":")[0].strip() in packages:
            raise UnknownLayout(f"pyproject.toml: {name} = {place!r} moves; an entry point lies in {HOME} itself")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_BEHIND))


def _rewrite(root: Path, home: Path, packages: Sequence[str]) -> None:
    """Rewrite every source below ``home``; a message names the file by its place in the repository."""
    files = [path for path in sorted(home.rglob("*")) if path.suffix in {".py", ".pyi", ".pyx"}]
    places = {path: _place(path.relative_to(home).as_posix(), packages) for path in files}
    mover = SourceMover(packages=packages, modules=_modules_below(places.values(), packages))
    for path, place in places.items():
        if not (root / place).is_file():
            raise UnknownLayout(f"{place}: where does it come from?")
        source = path.read_bytes().decode()
        if path.suffix == ".pyx":
            mover.check_cython(source, place)
        else:
            path.write_bytes(mover.moved(source, place).encode())


def _place(path: str, packages: Sequence[str]) -> str:
    return path if path.partition("/")[0] in packages else f"{HOME}/{path}"


def _modules_below(places: Any, packages: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name in module_names(list(places)) if "." in name and name.partition(".")[0] in packages)


def _without_tools(text: str) -> str:
    """Return pyproject.toml without its tables of tools, which must come last."""
    lines = text.splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if line.startswith(("[tool.", "[[tool.")))
    kept = "".join(lines[:end])
    if tomllib.loads(kept) != {name: table for name, table in tomllib.loads(text).items() if name != "tool"}:
        raise UnknownLayout("pyproject.toml: the tables of tools must come last")
    return kept


def _setup(tree: Path, told: Mapping[str, Any], packages: Sequence[str]) -> str:
    """Return the setup.py of the wheel's tree."""
    found = sorted(
        path.parent.relative_to(tree).as_posix().replace("/", ".") for path in (tree / HOME).rglob("__init__.py")
    )
    data = {_dotted(name, packages): patterns for name, patterns in told["package-data"].items()}
    extensions = [
        {
            **extension,
            "name": _dotted(extension["name"], packages),
            "sources": [f"{HOME}/{path}" for path in extension["sources"]],
        }
        for extension in told["ext-modules"]
    ]
    for source in (path for extension in extensions for path in extension["sources"]):
        if not (tree / source).is_file():
            raise UnknownLayout(
                f"pyproject.toml: the source {source.removeprefix(f'{HOME}/')} of an extension is not there"
            )
    return (
        "from setuptools import Extension, setup\n\n"
        f"setup(\n    packages={found!r},\n    package_data={data!r},\n"
        f"    ext_modules=[Extension(**told) for told in {extensions!r}],\n)\n"
    )


def _dotted(name: str, packages: Sequence[str]) -> str:
    if name == "*":
        return ""
    return f"{HOME}.{name}" if name.partition(".")[0] in packages else name

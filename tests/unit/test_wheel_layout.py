"""What the wheel is made of: the sources rewritten for a place below 'stratolog', and nothing that is not understood (decision 0036)."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

from build_tools.layout import UnknownLayout, make_tree
from build_tools.rewriting import NotMovable, SourceMover

ROOT = Path(__file__).parents[2]
OF_THE_SITE = ("site_pages.py",)
"""MkDocs runs it; a wheel is built without."""
MOVER = SourceMover(
    packages=frozenset({"schemas", "producers"}),
    modules=frozenset({"schemas.log", "schemas.rows", "schemas.deep", "schemas.deep.er", "producers.load"}),
)
PACKAGES = (
    "schemas",
    "transport",
    "replicated_db",
    "om_processors",
    "datanode_processors",
    "producers",
    "spark_streaming",
)


def moved(source: str) -> str:
    return MOVER.moved(source, "producers/here.py")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from schemas.log import Batch\n", "from stratolog.schemas.log import Batch\n"),
        ("from schemas import log, rows as r\n", "from stratolog.schemas import log, rows as r\n"),
        ("from schemas.log import (  # noqa\n    A,\n    B,\n)\n", "from stratolog.schemas.log import (  # noqa\n    A,\n    B,\n)\n"),
        ("from   schemas . log import A\n", "from   stratolog.schemas . log import A\n"),
        ("from \\\n  schemas.log import A\n", "from \\\n  stratolog.schemas.log import A\n"),
        ("import schemas\n", "import stratolog.schemas as schemas\n"),
        ("import schemas as s, os, producers\n", "import stratolog.schemas as s, os, stratolog.producers as producers\n"),
        ("import schemas.log as log\n", "import stratolog.schemas.log as log\n"),
        ("def f():\n\tfrom schemas.log import A; from producers import B\n", "def f():\n\tfrom stratolog.schemas.log import A; from stratolog.producers import B\n"),
        ("x = 'é€😀'; from schemas.log import A\n", "x = 'é€😀'; from stratolog.schemas.log import A\n"),
        ("x = '''\u2028\x0c'''\nfrom schemas.log import A\n", "x = '''\u2028\x0c'''\nfrom stratolog.schemas.log import A\n"),
        ("from schemas.log import A\r\nx = 1\r\n", "from stratolog.schemas.log import A\r\nx = 1\r\n"),
        ("run('-m', 'producers.load', \"schemas.deep.er\")\n", "run('-m', 'stratolog.producers.load', \"stratolog.schemas.deep.er\")\n"),
        ('"""Text.\n\n>>> from schemas.log import A\n>>> A(x=1)\n"""\n', '"""Text.\n\n>>> from stratolog.schemas.log import A\n>>> A(x=1)\n"""\n'),
        ("from schemas.log import A", "from stratolog.schemas.log import A"),
    ],
)  # fmt: skip
def test_what_names_a_module_is_rewritten(source: str, expected: str) -> None:
    assert moved(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "",
        "from stratolog.errors import UserError\nfrom stratolog import schemas_of\n",
        "from schemas_of_others import x\nimport productions\nfrom fastavro.schemas import y\n",
        "from . import log\nfrom .log import x\n",
        '"""As producers.load does; see schemas/log.py."""\n# from schemas import log\n',
        "schemas = [1]\nschemas.append(2)\nx.schemas.log\n",
        "log = 'the schemas. Then producers, of other.schemas.log and schemas-of'\n",
        "x = f'{schemas}.log'\n",
        "x = 'stratolog.schemas.log'\n",
    ],
)
def test_all_else_stays_as_it_is(source: str) -> None:
    assert moved(source) == source


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1\nimport schemas.log\n", "producers/here.py:2: 'import schemas.log' binds schemas: write 'from schemas import log'"),
        ("HOMES = {\n    'A': 'schemas',\n}\n", "producers/here.py:2: is 'schemas' the package, or only a word"),
        ("x = 'schemas.gone'\n", "here.py:1: 'schemas.gone' holds the name of a module"),
        ("x = 'python -m producers.load'\n", "holds the name of a module"),
        ("x = 'python -m producers'\n", "holds the name of a module"),
        ("x = 'from schemas import log'\n", "holds the name of a module"),
        ("x = 'schemas/avsc'\n", "holds the name of a module, or a path"),
        ("x = f'{1}schemas.log'\n", "here.py:1"),
        ("x = f'{1} schemas.{2} schemas.log'\n", "here.py:1"),
        ("x: 'schemas.log.Batch'\n", "holds the name of a module"),
        ("x = ('schemas'\n  '.log')\n", "write 'schemas.log' as one plain string"),
        ("x = 'schemas\\x2elog'\n", "write 'schemas.log' as one plain string"),
        ("from schemas import (\n", "not Python"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_its_place(source: str, reason: str) -> None:
    with pytest.raises(NotMovable) as refused:
        moved(source)
    assert reason in str(refused.value)


def test_cython_may_speak_of_the_packages_and_not_import_them() -> None:
    MOVER.check_cython('"""As schemas.log."""\n# schemas\ncdef int x = 1\n', "schemas/native.pyx")
    for source in ("cdef int x = 1\nfrom schemas.log cimport A\n", "cdef int x = 1\nimport schemas\n"):
        with pytest.raises(NotMovable, match=r"^schemas/native.pyx:2: the code names schemas"):
            MOVER.check_cython(source, "schemas/native.pyx")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    make_tree(ROOT, folder)
    return folder


def test_everything_of_ours_lies_below_one_package(tree: Path) -> None:
    assert sorted(path.name for path in tree.iterdir()) == [
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "setup.py",
        "stratolog",
    ]
    for package in PACKAGES:
        ours = {
            path.relative_to(ROOT)
            for path in (ROOT / package).rglob("*")
            if path.suffix in {".py", ".pyi", ".pyx", ".avsc", ".xml", ".html"}
        }
        assert ours
        assert all((tree / "stratolog" / path).is_file() for path in ours)
    assert not [path for path in tree.rglob("*") if path.suffix in {".so", ".pyc"}]


def test_nothing_in_it_imports_by_the_repositorys_names(tree: Path) -> None:
    for path in tree.rglob("*.py*"):
        if path.suffix == ".pyx":
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.partition(".")[0] in PACKAGES], path


def test_lines_keep_their_numbers(tree: Path) -> None:
    for path in (ROOT / "producers").rglob("*.py"):
        there = (tree / "stratolog" / path.relative_to(ROOT)).read_text()
        assert len(there.splitlines()) == len(path.read_text().splitlines())


def test_what_setuptools_is_told_names_the_new_places(tree: Path) -> None:
    told = (tree / "setup.py").read_text()
    assert "'stratolog.schemas.native'" in told
    assert "'stratolog/schemas/native.pyx'" in told
    assert "'stratolog.spark_streaming.jobs'" in told
    assert "'schemas" not in told


def test_the_templates_of_the_dashboard_are_packed() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["stratolog"]
    packed = {path for pattern in patterns for path in (ROOT / "stratolog").glob(pattern)}
    there = set((ROOT / "stratolog").rglob("*.html"))
    assert len(there) > 10
    assert there <= packed


PYPROJECT = """[project]
name = "stratolog"

[project.scripts]
stratolog = "stratolog.__main__:main"

[[tool.setuptools.ext-modules]]
name = "schemas.native"
sources = ["schemas/native.pyx"]

[tool.setuptools.packages.find]
include = ["schemas*", "producers*", "stratolog*"]

[tool.setuptools.package-data]
"*" = ["py.typed"]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a small tree of sources, with an empty folder 'into' beside it."""
    root = tmp_path / "root"
    for package in ("schemas", "producers", "stratolog"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
    for name in ("schemas/native.pyx", "README.md", "LICENSE"):
        (root / name).touch()
    (root / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "into").mkdir()
    return root


def test_a_package_dir_that_says_what_is_so_is_no_matter(small: Path) -> None:
    (small / "pyproject.toml").write_text(PYPROJECT + '[tool.setuptools.package-dir]\n"" = "."\n')
    make_tree(small, small.parent / "into")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[tool.setuptools.package-data]", '[tool.setuptools.cmdclass]\nx = "y"\n[tool.setuptools.package-data]', "cmdclass"),
        ("[tool.setuptools.package-data]", '[tool.setuptools.package-dir]\n"" = "src"\n[tool.setuptools.package-data]', "package-dir"),
        ("include = [", 'where = ["src"]\ninclude = [', "packages.find"),
        ('"stratolog*"]', "]", "packages.find"),
        ("[project.scripts]", '[project.scripts]\nload = "producers.load:main"', "load = 'producers.load:main' moves"),
        ("[project.scripts]", '[project.scripts]\nload = "producers:main"', "load = 'producers:main' moves"),
        ("[project]", "[tool.early]\nx = 1\n[project]", "must come last"),
        ('["schemas/native.pyx"]', '["schemas/gone.pyx"]', "schemas/gone.pyx"),
    ],
)  # fmt: skip
def test_a_pyproject_that_is_not_understood_is_refused(small: Path, old: str, new: str, reason: str) -> None:
    (small / "pyproject.toml").write_text(PYPROJECT.replace(old, new))
    with pytest.raises(UnknownLayout, match=reason):
        make_tree(small, small.parent / "into")


def test_a_package_is_not_put_onto_a_module_of_stratolog(small: Path) -> None:
    (small / "stratolog" / "producers.py").touch()
    with pytest.raises(UnknownLayout, match=r"stratolog/producers is there already"):
        make_tree(small, small.parent / "into")


def test_a_file_that_cannot_be_rewritten_is_named_by_its_place_in_the_repository(small: Path) -> None:
    (small / "producers" / "load.py").write_text("import os\nHOME = 'schemas'\n")
    with pytest.raises(NotMovable, match=r"^producers/load.py:2: "):
        make_tree(small, small.parent / "into")


def test_building_needs_nothing_but_setuptools() -> None:
    """An isolated build has pyproject's requirements alone."""
    allowed = {*sys.stdlib_module_names, "setuptools", "build_tools"}
    for path in (ROOT / "build_tools").glob("*.py"):
        if path.name in OF_THE_SITE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.partition(".")[0] for name in names} <= allowed, path

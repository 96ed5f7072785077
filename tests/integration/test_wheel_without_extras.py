"""The wheel in an empty environment: the client SDK and the command, without Spark, Faust or RocksDB; and all of it beside foreign packages.

Builds an sdist from a copy of the sources and the wheel from that, installs it with its base dependencies alone (from pip's configured index),
and runs the installed code in a process that cannot see this checkout.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.sdk.typed_sample import FINDINGS, SAMPLE, found_in_sample

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
FOREIGN = (
    "pyspark",
    "py4j",
    "pandas",
    "numpy",
    "pyarrow",
    "faust",
    "mode",
    "aiokafka",
    "aiohttp",
    "jinja2",
    "rocksdict",
    "pytest",
    "avro",
    "opentelemetry",
)
OURS = ("schemas", "transport", "replicated_db", "om_processors", "datanode_processors", "producers", "spark_streaming")
SDK = tuple(
    f"stratolog.{name}"
    for name in (
        "schemas",
        "schemas.codecs.codec",
        "producers",
        "producers.bulk.load",
        "producers.bulk.ingest",
        "producers.bulk.listing",
    )
)
NODES = tuple(
    f"stratolog.{name}"
    for name in (
        "om_processors.node",
        "datanode_processors.node",
        "replicated_db.shell.database.host",
        "spark_streaming.jobs.audit_stream",
        "spark_streaming.jobs.audit_batch",
        "local.stack",
        "ui.serving.server",
        "commands.audit",
        "cli",
    )
)
BESIDE_OTHERS = """
    import importlib, json, sys
    for name in {names}:
        importlib.import_module(name)
    from stratolog.commands.audit import BATCH_JOB
    from stratolog.schemas import native
    from stratolog.schemas.codecs import codec
    from stratolog.schemas.records import record
    from stratolog.spark_streaming.records.session import PACKAGE_ROOT
    from stratolog.ui.rendering.markup import rendered
    print(json.dumps({{
        "foreign": [importlib.import_module(name).WHOSE for name in {ours}],
        "codec": [codec.compile_encoder.__module__, native.__name__],
        "records": record.make_in_c.__module__,
        "root": str(PACKAGE_ROOT),
        "job": BATCH_JOB,
        "page": rendered("login.html"),
        "from": sorted({{module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "stratolog"}}),
    }}))
"""
PROBE = """
    import importlib, importlib.util, json, sys
    for name in {sdk}:
        importlib.import_module(name)
    from stratolog import producers, schemas
    from stratolog.schemas.codecs import codec
    from stratolog.schemas.records.messages import CreateKey, Request
    request = Request(client_id=bytes(16), call_id=1, first_sent_at_ms=2, answered_below=1, reply_partition=0,
                      caller="me", body=CreateKey(volume="v", bucket="b", key="k", size=1))
    from stratolog import AsyncClient, Client
    print(json.dumps({{
        "decoded": codec.decode(codec.encode(request)) == request,
        "same": Client is producers.Client and AsyncClient is producers.AsyncClient,
        "where": [producers.__file__, schemas.__file__],
        "loaded": [name for name in {foreign} if name in sys.modules],
        "found": [name for name in {foreign} if importlib.util.find_spec(name)],
    }}))
"""


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["CFLAGS"] = "-O0"  # nothing here asks how fast the codec is, and optimising it takes most of the build
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def ran(*command: object, cwd: Path) -> str:
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: two runs at once must not share setuptools' build folder, nor leave one behind."""
    source = tmp_path_factory.mktemp("source")
    for package in sorted(path.parent for path in ROOT.glob("*/__init__.py")):
        shutil.copytree(package, source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    into = tmp_path_factory.mktemp("wheel")
    ran(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", into, source, cwd=into)
    (sdist,) = into.glob("stratolog-*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    ran(*pip, "--wheel-dir", into, sdist, cwd=into)
    (built,) = into.glob("stratolog-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return the folder of an environment that has the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    ran(*pip_of(folder), "install", "--quiet", "--disable-pip-version-check", "--no-compile", wheel, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def beside_others(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return the folder of an environment with the wheel, other people's packages of our folders' names, and the libraries of the tests' own one."""
    folder = tmp_path_factory.mktemp("beside")
    venv.create(folder)
    ran(
        *pip_of(folder),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--no-deps",
        wheel,
        cwd=folder,
    )
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name in OURS:
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("WHOSE = 'theirs'\n")
    # Only the folders in a .pth file are read, not the .pth files in those: this checkout stays out of sight.
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return folder


def pip_of(environment: Path) -> tuple[object, ...]:
    """Return the command of this environment's pip, for another one, which needs none then."""
    return sys.executable, "-m", "pip", "--python", environment / "bin" / "python"


def test_the_wheel_has_one_package_and_says_so(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (told,) = (archive.read(name).decode().split() for name in names if name.endswith("/top_level.txt"))
    (info,) = {name.partition("/")[0] for name in names} - {"stratolog"}
    assert info.startswith("stratolog-")
    assert info.endswith(".dist-info")
    assert told == ["stratolog"]
    assert {
        "stratolog/py.typed",
        "stratolog/schemas/native.pyi",
        "stratolog/schemas/records/native.pyi",
        "stratolog/local/poms/spark.xml",
        "stratolog/local/poms/delta.xml",
        "stratolog/ui/rendering/templates/page.html",
    } <= set(names)
    assert {f"stratolog/{name}/__init__.py" for name in OURS} <= set(names)
    assert {f"stratolog/{path.relative_to(ROOT)}" for path in (ROOT / "schemas").rglob("*.avsc")} <= set(names)
    assert not [name for name in names if "build_tools" in name or "/tests/" in name]


def test_the_sdist_can_build_without_the_repository(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("stratolog-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "build_tools/backend.py", "schemas/native.pyx", "schemas/codecs/codec.py"} <= names


def test_all_of_it_imports_beside_foreign_packages_of_the_same_names(beside_others: Path) -> None:
    probe = textwrap.dedent(BESIDE_OTHERS).format(names=SDK + NODES, ours=OURS)
    answer = json.loads(ran(beside_others / "bin" / "python", "-c", probe, cwd=beside_others))
    (packages,) = beside_others.glob("lib/python3*/site-packages")
    assert answer["foreign"] == ["theirs"] * len(OURS)
    assert answer["codec"] == ["stratolog.schemas.native"] * 2
    assert answer["records"] == "stratolog.schemas.records.native"
    assert answer["root"] == str(packages)
    assert "This dashboard is for operators" in answer["page"]
    assert answer["job"] == "stratolog.spark_streaming.jobs.audit_batch"
    assert all(Path(where).is_relative_to(packages / "stratolog") for where in answer["from"])
    for job in ("audit_stream", "audit_batch"):
        module = f"stratolog.spark_streaming.jobs.{job}"
        assert "stratolog.spark_streaming.configuration.audit_config" in ran(
            beside_others / "bin" / "python", "-m", module, "--help", cwd=beside_others
        )


def test_the_sdk_imports_and_nothing_heavy_is_there(environment: Path) -> None:
    probe = textwrap.dedent(PROBE).format(sdk=SDK, foreign=FOREIGN)
    answer = json.loads(ran(environment / "bin" / "python", "-c", probe, cwd=environment))
    assert answer["decoded"]
    assert answer["same"]
    assert all(Path(where).is_relative_to(environment) for where in answer["where"])
    assert answer["found"] == []
    assert answer["loaded"] == []


def test_the_environment_is_consistent(environment: Path) -> None:
    ran(*pip_of(environment), "check", cwd=environment)


def test_the_command_and_the_load_generator_start(environment: Path) -> None:
    assert "Usage: stratolog" in ran(environment / "bin" / "stratolog", "--help", cwd=environment)
    assert "--in-flight" in ran(
        environment / "bin" / "python", "-m", "stratolog.producers.bulk.load", "--help", cwd=environment
    )


def test_a_client_without_a_broker_says_so(environment: Path) -> None:
    code = "from stratolog import Client; Client('127.0.0.1:1', connect_timeout_ms=500)"
    result = run(environment / "bin" / "python", "-c", code, cwd=environment)
    assert result.returncode == 1
    assert "NOT_CONNECTED" in result.stderr
    assert "127.0.0.1:1" in result.stderr


def test_type_checkers_see_the_sdk_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", environment / "bin" / "python")
    result = run(*mypy, "sample.py", cwd=tmp_path)
    assert found_in_sample(result.stdout) == FINDINGS, result.stdout + result.stderr

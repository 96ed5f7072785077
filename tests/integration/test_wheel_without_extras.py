"""The wheel in an empty environment: the client SDK and the command, without Spark, Faust or RocksDB.

Builds the wheel from a copy of the sources, installs it with its base dependencies alone (from pip's configured index),
and runs the installed code in a process that cannot see this checkout.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from tests.support.typed_sample import FINDINGS, SAMPLE, found_in_sample

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

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
    "rocksdict",
    "pytest",
)
SDK = ("schemas", "schemas.codec", "producers", "producers.load", "producers.ingest", "producers.listing")
PROBE = """
    import importlib, importlib.util, json, sys
    for name in {sdk}:
        importlib.import_module(name)
    import producers, schemas
    from schemas import codec
    from schemas.messages import CreateKey, Request
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
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    into = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    ran(*pip, "--wheel-dir", into, source, cwd=source)
    (built,) = into.glob("stratolog-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return the folder of an environment that has the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    ran(*pip_of(folder), "install", "--quiet", "--disable-pip-version-check", "--no-compile", wheel, cwd=folder)
    return folder


def pip_of(environment: Path) -> tuple[object, ...]:
    """Return the command of this environment's pip, for another one, which needs none then."""
    return sys.executable, "-m", "pip", "--python", environment / "bin" / "python"


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
    assert "--in-flight" in ran(environment / "bin" / "python", "-m", "producers.load", "--help", cwd=environment)


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

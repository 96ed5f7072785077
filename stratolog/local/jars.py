"""Jars from Maven: the Kafka broker's and Spark's connectors, fetched once and cached by version.

A set of jars is described by ``poms/NAME.xml`` and lies in ``CACHE/jars/NAME-VERSION/``. Nothing is fetched if that
directory exists. Two processes may ask at once. The one that gets the lock file fetches into a directory beside it and
renames that into place; the other one then finds it. So the directory is always whole or absent.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from schemas.settings.values import expanded
from stratolog.configuration.places import is_homeless
from stratolog.errors import Unavailable, UsageError, UserError

KAFKA_VERSION = "4.3.1"
SPARK_VERSION = "4.0.0"
DELTA_VERSION = "4.0.0"
"""All are the versions that ``poms/*.xml`` name; a test holds them equal."""

CACHE_DIR_VARIABLE = "STRATOLOG_CACHE_DIR"
FETCH_TIMEOUT_S = 600
REMEDY = f"set {CACHE_DIR_VARIABLE} (or 'cache_dir' in the settings file) to a directory that you may write"
ERROR_LINES = 15
"""Lines of Maven's output that an error shows."""


def default_cache_dir() -> Path:
    """Return the cache directory: ``STRATOLOG_CACHE_DIR``, else ``~/.cache/stratolog``."""
    found = expanded(Path(os.environ.get(CACHE_DIR_VARIABLE) or "~/.cache/stratolog"))
    return found if is_homeless(found) else found.absolute()


def kafka_jars(cache_dir: Path | None = None) -> Path:
    """Return the directory of the broker's jars, fetching them if need be; raises as :func:`fetch` does."""
    return fetch("kafka", KAFKA_VERSION, cache_dir)


def spark_jars(cache_dir: Path | None = None) -> list[Path]:
    """Return Spark's connector jars for ``spark.jars``, fetching them if need be; raises as :func:`fetch` does."""
    return sorted(fetch("spark", SPARK_VERSION, cache_dir).glob("*.jar"))


def delta_jars(cache_dir: Path | None = None) -> list[Path]:
    """Return Delta's jars for ``spark.jars``, fetching them if need be; raises as :func:`fetch` does."""
    return sorted(fetch("delta", DELTA_VERSION, cache_dir).glob("*.jar"))


def fetch(name: str, version: str, cache_dir: Path | None = None) -> Path:
    """Return ``CACHE/jars/NAME-VERSION``, fetching it by Maven if it is absent.

    Raises Unavailable if Maven is missing, UserError if it fails or names no jar, or if the cache cannot be written.
    """
    cache = cache_dir or default_cache_dir()
    if is_homeless(cache):
        raise UsageError(f"no home directory is known for the jars' cache {cache}: {REMEDY}")
    root = cache / "jars"
    target = root / f"{name}-{version}"
    try:
        if target.is_dir():
            return target
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{name}-{version}.lock"):
            if not target.is_dir():
                _fetch_into(target, _pom(name))
    except OSError as error:
        raise UserError(f"the jars' cache {cache} cannot be used: {error.strerror or error}: {REMEDY}") from error
    return target


def _pom(name: str) -> str:
    return (resources.files("stratolog.local") / "poms" / f"{name}.xml").read_text()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel lets go of it if the holder dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch_into(target: Path, pom: str) -> None:
    """Fetch the jars that ``pom`` names, and put them at ``target`` all at once."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("'mvn' not found: install Maven, it fetches the jars of Kafka and Spark")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch_name:
        scratch = Path(scratch_name)
        (scratch / "pom.xml").write_text(pom)
        _run_maven(maven, scratch, target.name)
        jars = scratch / "jars"
        if not any(jars.glob("*.jar")):
            raise UserError(f"Maven fetched no jar for {target.name}")
        jars.rename(target)


def _has_home() -> bool:
    """Say whether the system knows this user and his home: Java asks the system, not the variable HOME."""
    try:
        return bool(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return False


def _run_maven(maven: str, folder: Path, what: str) -> None:
    command = [maven, "-B", "-q", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    if not _has_home():
        # Without a home, Java would use '?', a folder in the working directory.
        command.append(f"-Dmaven.repo.local={folder / 'repository'}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"fetching {what} by Maven took more than {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-ERROR_LINES:])
        raise Unavailable(f"Maven could not fetch {what} (exit {done.returncode}):\n{tail}")

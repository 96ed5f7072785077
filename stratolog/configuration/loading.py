"""Where settings come from: defaults, then a TOML file, then ``STRATOLOG_*`` variables, the last one winning.

The file is the one that ``--config`` or ``STRATOLOG_CONFIG`` names, else ``stratolog.toml`` of the project's directory
(``stratolog.configuration.places``). A relative ``data_dir`` in the project's file counts from the project's directory,
any other one from the working directory. A setting's variable is its name in capitals: ``bootstrap_servers`` is
``STRATOLOG_BOOTSTRAP_SERVERS``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.kafka.connection import FILES
from schemas.settings.table import OLD_NAMES
from schemas.settings.values import expanded
from stratolog.configuration.places import (
    DEFAULT_FILE,
    is_homeless,
    project_directory,
    stack_directory,
    working_directory,
)
from stratolog.configuration.settings import KAFKA_PREFIX, PREFIX, Settings, present, read_setting, read_settings
from stratolog.errors import UsageError

CONFIG_VARIABLE = "STRATOLOG_CONFIG"
FILE_SETTINGS = (
    "cluster_secret_file", "tls_ca_file", "tls_certificate_file", "tls_key_file", "key_encryption_file",
)  # fmt: skip
"""Settings that name a file; ``credentials_file`` counts from the working directory."""


def load_settings(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from ``path`` (or where the module's docstring says) and the environment.

    Raises UsageError naming what is wrong and where.
    """
    variables = os.environ if environment is None else environment
    here = working_directory()
    named = path or (Path(variables[CONFIG_VARIABLE]) if variables.get(CONFIG_VARIABLE) else None)
    root = here if named else project_directory(here)
    in_file = _from_file(expanded(named) if named else _default_file(root))
    in_environment = _from_environment(variables)
    given = in_file | in_environment
    if "kafka" in given:
        named_here = dict(in_environment.get("kafka", ()))
        given["kafka"] = _absolute_files(root, dict(in_file.get("kafka", ()))) | _absolute_files(here, named_here)
        given["kafka"] = tuple(sorted(given["kafka"].items()))
    settings = replace(Settings(), **given, explicit=frozenset(given))
    if "data_dir" in in_environment:
        root = here
    elif "data_dir" not in in_file and named:
        root = stack_directory(here)
    # Absolute from here on: a process that is started later may have another working directory.
    files: dict[str, Any] = {
        name: _absolute(name, root, file) for name in FILE_SETTINGS if (file := getattr(settings, name)) is not None
    }
    return replace(
        settings,
        data_dir=_absolute("data_dir", root, settings.data_dir),
        cache_dir=_cache_dir(here, settings.cache_dir),
        **files,
    )


def _absolute(name: str, root: Path, path: Path) -> Path:
    found = expanded(path)
    if is_homeless(found):
        raise UsageError(f"setting '{name}': no home directory is known for {found}: give an absolute path")
    return root / found


def _absolute_files(root: Path, options: dict[str, str]) -> dict[str, str]:
    """Return ``kafka.*`` settings with absolute paths; a variable's path counts from the working directory."""
    return {
        name: str(_absolute(f"kafka.{name}", root, Path(value))) if name in FILES else value
        for name, value in options.items()
    }


def _cache_dir(root: Path, path: Path) -> Path:
    """Return the cache directory, unexpanded if no home is known: few commands need it (local/jars.py)."""
    found = expanded(path)
    return found if is_homeless(found) else root / found


def without_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without ``STRATOLOG_*``, for a process that takes its settings from a file alone."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}


def _default_file(root: Path) -> Path | None:
    """Return the project's settings file, None if it has none."""
    return root / DEFAULT_FILE if os.path.isfile(root / DEFAULT_FILE) else None


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"settings file {path}: {error.strerror}") from error
    except ValueError as error:  # tomllib's own, of UTF-8, and of a number with thousands of digits
        raise UsageError(f"settings file {path} is not TOML: {error}") from error
    return read_settings(content, str(path))


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {name: name.removeprefix(PREFIX).lower() for name in environment if name.startswith(PREFIX)}
    old = {name: PREFIX + OLD_NAMES[setting].upper() for name, setting in names.items() if setting in OLD_NAMES}
    variables = present({name: environment[name] for name in names if name != CONFIG_VARIABLE}, old, "the environment")
    given: dict[str, Any] = {}
    for variable, value in variables.items():
        name, found = variable.removeprefix(PREFIX).lower(), read_setting(variable, value, "the environment")
        if name == "kafka" or name.startswith(KAFKA_PREFIX):
            given["kafka"] = (*given.get("kafka", ()), *found)
        else:
            given[name] = found
    return given

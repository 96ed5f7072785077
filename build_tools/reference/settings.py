"""docs/reference/settings.md: the settings, and the configuration of the audit's jobs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Any

from build_tools.reference.markdown import code, page, plain, prose, table
from schemas.kafka.connection import FILES, USERNAME, VERIFY_NAMES
from schemas.kafka.connection import NAMES as KAFKA
from schemas.settings.declaring import Audience
from schemas.settings.table import EVERY_PROCESS, GROUPS, OLD_NAMES, AuditSettings
from spark_streaming.configuration.audit_config import AuditConfig
from stratolog.configuration.settings import PREFIX

JAVA_BY_OTHER_NAMES = {*FILES, USERNAME, VERIFY_NAMES}
"""Settings that Java has under other names."""


def meanings(cls: type) -> Mapping[str, str]:
    """Return the docstring of each field of a class, as its source has them."""
    (found,) = ast.parse(inspect.getsource(cls)).body
    body = found.body if isinstance(found, ast.ClassDef) else []
    said: dict[str, str] = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            said[field.target.id] = inspect.cleandoc(str(text.value.value))
    return said


def allowed(reader: Any) -> str:
    """Return what a reader of a setting takes, in words."""
    bounds = inspect.getclosurevars(reader).nonlocals
    if "lowest" in bounds:
        return f"{'0, or ' if bounds['or_zero'] else ''}{bounds['lowest']:,} to {bounds['highest']:,}"
    if "allowed" in bounds:
        return ", ".join(code(one) for one in bounds["allowed"])
    return {
        "addresses": "addresses", "boolean": "true, false", "kafka": "table", "datanodes": "table", "hosts": "names", "name": "name",
        "nodes": "table", "path": "path", "peers": "addresses", "pipelines": "names", "rack": "path", "racks": "table",
        "user": "name", "web_address": "web address",
    }[reader.__name__]  # fmt: skip


def default_of(field: Any) -> str:
    """Return a field's default in words."""
    if field.default is MISSING:
        return "needed"
    value = field.default
    if field.name == "caller":
        return "the process's user"
    if value is None:
        return "unset"
    if value in ((), ""):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(code(_item(one)) for one in value)
    return code(str(value).lower() if isinstance(value, bool) else value)


def _item(one: Any) -> str:
    return f"{one.name}={one.address}" if hasattr(one, "address") else str(getattr(one, "name", one))


def _whom(readers: tuple[Audience, ...]) -> str:
    return "every process" if readers == EVERY_PROCESS else ", ".join(readers)


def settings_page() -> str:
    """Return the page."""
    rows = [
        (
            code(one.name),
            default_of(one),
            allowed(one.metadata["read"]),
            _whom(group.FOR_WHOM),
            plain(said[one.name]),
        )
        for group in GROUPS
        for said in (meanings(group),)
        for one in fields(group)
    ]
    old = " and ".join(f"`{new}` was `{name}`" for name, new in OLD_NAMES.items())
    intro = prose(
        f"A setting stands in `stratolog.toml`, or in a variable of the environment: `{PREFIX}` and its name in "
        "capitals. The variable wins. The file is the one that `--config` or `STRATOLOG_CONFIG` names, else the one of "
        "the working directory or of one above it. An unknown name or a wrong value is an error that names it. Times "
        "are milliseconds. *For whom* says which processes read a setting; the local stack gives its settings to all of "
        f"its processes. Until the next release old names are taken, with a warning: {old}. This page is made from the "
        "code."
    )
    example = [
        "```toml", 'bootstrap_servers = "10.0.0.1:9092,10.0.0.2:9092"', "shards = 4", "", "[nodes]",
        'om1 = "10.0.0.11:9871"', 'om2 = "10.0.0.12:9871"', "```", "",
    ]  # fmt: skip
    slice_names = {one.name for one in fields(AuditSettings)}
    jobs = [(code(one.name), default_of(one)) for one in fields(AuditConfig) if one.name not in slice_names]
    _, _, of_jobs = inspect.cleandoc(AuditConfig.__doc__ or "").partition("\n\n")
    security = [
        (code(name), one.doc, "yes" if one.java or name in JAVA_BY_OTHER_NAMES else "no") for name, one in KAFKA.items()
    ]
    return page(
        "Settings",
        intro,
        example,
        table(("setting", "default", "values", "for whom", "meaning"), rows),
        ["## Settings of `[kafka]`", ""],
        prose(
            "They pass through to every client of Kafka, by librdkafka's names. In the environment, "
            f"`{PREFIX}KAFKA_SASL_USERNAME` is `sasl.username`; in a program, `Client(..., kafka={{...}})`. Any other name "
            "is refused, because the log contract depends on how our clients are set. Passwords are in files. "
            "[Security](../security.md) says how they go together."
        ),
        table(("setting", "meaning", "for Spark too"), security),
        ["## The audit's configuration", ""],
        prose(
            "The Spark jobs (`python -m spark_streaming.jobs.audit_stream --config FILE`) have a JSON file of their "
            "own. `stratolog up` writes it to `audit/audit.json` of the data directory. It takes the settings whose names "
            "begin with `audit_`, and what is below. Until the next release it takes old names, with a warning: those "
            "without `audit_`, `window_seconds`, and `driver_memory` for `audit_heap_mib`."
        ),
        prose(plain(of_jobs)),
        table(("name", "default"), jobs),
    )

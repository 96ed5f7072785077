from __future__ import annotations

import json
import os
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import avro.schema
import pytest

from schemas.codecs import codec, reference
from schemas.codecs.compatibility import unsafe_change
from schemas.codecs.registry import FOLDER, SchemaVersion, registry
from schemas.column_families import BUCKETS, OM_COLUMN_FAMILIES, RETRY_TABLE
from schemas.records import datanode, door, identity, log, messages, rows

FINGERPRINTS = Path(__file__).parents[2] / "golden" / "fingerprints.json"


def number_of(path: Path) -> int:
    return int(path.stem.rpartition(".v")[2])


def name_of(path: Path) -> str:
    return path.name.partition(".")[0]


FILES = sorted(FOLDER.glob("*/*.avsc"), key=lambda path: (path.parent.name, name_of(path), number_of(path)))
CURRENT = {name_of(path): path for path in FILES}
"""Of each schema the file of the highest number."""


def versions(name: str) -> list[Path]:
    """All versions of ``name``, oldest first."""
    return [path for path in FILES if name_of(path) == name]


def definitions(schema: Any) -> list[dict[str, Any]]:
    """Every named schema defined in ``schema``."""
    if isinstance(schema, list):
        return [found for branch in schema for found in definitions(branch)]
    if not isinstance(schema, dict):
        return []
    inner = [schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))]
    if not isinstance(schema["type"], str):
        inner.append(schema["type"])
    own = [schema] if "name" in schema else []
    return own + [found for part in inner if part is not None for found in definitions(part)]


def all_definitions() -> list[Any]:
    return [
        pytest.param(definition, id=f"{name}-{definition['name']}")
        for name, path in CURRENT.items()
        for definition in definitions(json.loads(path.read_text()))
    ]


@pytest.mark.parametrize("definition", [d for d in all_definitions() if d.values[0]["type"] == "record"])
def test_every_record_and_field_has_a_doc(definition: dict[str, Any]):
    assert len(definition.get("doc", "")) >= 4, definition["name"]
    undocumented = [f["name"] for f in definition["fields"] if len(f.get("doc", "").strip()) < 4]
    assert undocumented == []


@pytest.mark.parametrize("name", CURRENT)
def test_the_highest_of_versions_without_a_gap_is_current(name: str):
    paths = versions(name)
    assert [number_of(path) for path in paths] == list(range(1, len(paths) + 1))
    assert {path.parent for path in paths} == {CURRENT[name].parent}
    assert registry.current(name).text == paths[-1].read_text()
    assert [version.text for version in reversed(registry.versions(name))] == [path.read_text() for path in paths]


@pytest.mark.parametrize("name", CURRENT)
def test_a_version_that_has_landed_never_changes(name: str):
    """A log may hold values of each. ``REWRITE_GOLDEN=1 pytest tests/unit/schemas`` adds new versions to the file."""
    landed: dict[str, list[str]] = json.loads(FINGERPRINTS.read_text())
    found = [version.fingerprint.hex() for version in reversed(registry.versions(name))]
    known = landed.get(name, [])
    assert found[: len(known)] == known, f"a version of {name} that has landed is another now: add a new one instead"
    if os.environ.get("REWRITE_GOLDEN"):
        FINGERPRINTS.write_text(json.dumps(landed | {name: found}, indent=1, sort_keys=True) + "\n")
    else:
        assert found == known, f"{FINGERPRINTS} lacks versions of {name}: run this test with REWRITE_GOLDEN=1"


def test_no_schema_that_has_landed_is_gone():
    assert set(json.loads(FINGERPRINTS.read_text())) == set(CURRENT)


@pytest.mark.parametrize("name", CURRENT)
def test_current_is_compatible_with_every_version_both_ways(name: str):
    current = json.loads(CURRENT[name].read_text())
    for path in versions(name):
        assert unsafe_change(current, json.loads(path.read_text())) == [], path.name


@pytest.mark.parametrize("name", CURRENT)
def test_versions_are_compatible_with_each_other(name: str):
    texts = [json.loads(path.read_text()) for path in versions(name)]
    for older, newer in pairwise(texts):
        assert unsafe_change(newer, older) == []


def test_the_reference_implementation_accepts_every_schema():
    assert reference.validate_schemas() == [version.name for version in registry]
    for path in FILES:
        avro.schema.parse(path.read_text())


def test_validate_names_the_schema_that_is_wrong(monkeypatch: pytest.MonkeyPatch):
    broken = SchemaVersion(name="Broken", text='{"type": "recrod"}', parsed=None, fingerprint=b"", resolve_to=None)
    monkeypatch.setattr(reference, "registry", [broken])
    with pytest.raises(avro.schema.SchemaParseException, match="Broken"):
        reference.validate_schemas()


def test_fingerprints_are_distinct():
    fingerprints = [version.fingerprint for version in registry]
    assert len(set(fingerprints)) == len(fingerprints) == len(CURRENT)


def record_classes() -> list[Any]:
    classes = {
        name: value
        for module in (log, messages, rows, datanode, door, identity)
        for name, value in vars(module).items()
        if isinstance(value, type) and hasattr(value, "__dataclass_fields__") and value.__module__ == module.__name__
    }
    defined: dict[str, list[list[str]]] = {}
    for path in CURRENT.values():
        for definition in definitions(json.loads(path.read_text())):
            if definition["type"] == "record":
                defined.setdefault(definition["name"], []).append([f["name"] for f in definition["fields"]])
    return [pytest.param(cls, defined.pop(name, None), id=name) for name, cls in classes.items()] + [
        pytest.param(None, found, id=f"no class {name}") for name, found in defined.items()
    ]


@pytest.mark.parametrize(("cls", "defined"), record_classes())
def test_classes_and_schemas_have_the_same_fields_in_the_same_order(cls: type | None, defined: list[list[str]] | None):
    assert cls is not None, "a schema defines a record that no class stands for"
    assert defined is not None, "a class that no schema defines"
    own = [field.name for field in fields(cls)]
    assert all(found == own for found in defined)


def test_a_fixed_of_one_name_has_one_size_everywhere():
    sizes: dict[str, set[int]] = {}
    for path in CURRENT.values():
        for definition in definitions(json.loads(path.read_text())):
            if definition["type"] == "fixed":
                sizes.setdefault(definition["name"], set()).add(definition["size"])
    assert {name: found for name, found in sizes.items() if len(found) > 1} == {}
    assert sizes["Nonce"] == {log.NONCE_BYTES}
    assert sizes["Chain"] == {log.CHAIN_BYTES}


def test_every_current_schema_is_a_top_level_type_of_the_codec():
    assert {cls.__name__ for cls in codec.TOP_LEVEL} == set(CURRENT)


def test_schemas_live_in_the_module_of_their_folder():
    for name, path in CURRENT.items():
        modules = {
            "log": log, "messages": messages, "rows": rows, "datanode": datanode, "door": door, "identity": identity,
        }  # fmt: skip
        assert hasattr(modules[path.parent.name], name)


def test_column_families_are_the_contract():
    assert OM_COLUMN_FAMILIES == (
        "retryTable", "volumeTable", "bucketTable", "keyTable", "openKeyTable", "deletedTable", "usageTable",
        "pipelineTable", "datanodeTable", "snapshotTable", "inlineTable", "prefixTable",
        "identityTable",
    )  # fmt: skip
    assert OM_COLUMN_FAMILIES[0] == RETRY_TABLE
    assert BUCKETS == 256

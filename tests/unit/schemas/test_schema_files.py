from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import avro.schema
import pytest

import schemas
from schemas.codecs import codec, reference
from schemas.codecs.compatibility import unsafe_change
from schemas.codecs.registry import SchemaVersion, registry
from schemas.column_families import BUCKETS, OM_COLUMN_FAMILIES, RETRY_TABLE
from schemas.records import datanode, door, identity, log, messages, rows

FOLDER = Path(schemas.__file__).parent
CURRENT = {path.stem: path for path in sorted(FOLDER.glob("avsc/*/*.avsc"))}
HISTORY = sorted(FOLDER.glob("history/*/v*.avsc"))


def released(name: str) -> list[Path]:
    """Released versions of ``name``, oldest first."""
    return sorted((FOLDER / "history" / name).glob("v*.avsc"), key=lambda path: int(path.stem[1:]))


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
def test_current_schema_is_the_newest_released(name: str):
    versions = released(name)
    assert versions, f"{name} has no history"
    assert [int(path.stem[1:]) for path in versions] == list(range(1, len(versions) + 1))
    assert json.loads(CURRENT[name].read_text()) == json.loads(versions[-1].read_text())


def test_history_holds_no_forgotten_schema():
    assert {path.parent.name for path in HISTORY} == set(CURRENT)


@pytest.mark.parametrize("name", CURRENT)
def test_current_is_compatible_with_every_released_version_both_ways(name: str):
    current = json.loads(CURRENT[name].read_text())
    for path in released(name):
        assert unsafe_change(current, json.loads(path.read_text())) == [], path.name


@pytest.mark.parametrize("name", CURRENT)
def test_released_versions_are_compatible_with_each_other(name: str):
    texts = [json.loads(path.read_text()) for path in released(name)]
    for older, newer in pairwise(texts):
        assert unsafe_change(newer, older) == []


def test_the_reference_implementation_accepts_every_schema():
    assert reference.validate_schemas() == [version.name for version in registry]
    for path in HISTORY:
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

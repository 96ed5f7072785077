"""Values written by older versions are read; each test plants versions in a registry of its own."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from schemas.codecs import codec
from schemas.codecs.codec import UnknownSchema, decode, encode
from schemas.codecs.compatibility import unsafe_change
from schemas.codecs.registry import FOLDER, MARKER, Registry, fingerprint_of, registry
from schemas.records.log import Batch, Put, RequestPosition
from schemas.records.messages import CreateVolume, DeleteKey, Request, RequestBody
from schemas.records.rows import BlockLocation, KeyInfo

KEY = KeyInfo(
    volume="v", bucket="b", key="k", owner="o", object_id=1, update_id=2, size=3, replication="RATIS/THREE",
    blocks=[BlockLocation(container_id=1, local_id=2, offset=0, length=3, pipeline="p")], metadata={"a": "b"},
    creation_time_ms=4, modification_time_ms=5,
)  # fmt: skip


def request(body: RequestBody) -> Request:
    return Request(
        client_id=bytes(16), call_id=1, first_sent_at_ms=2, answered_below=0, reply_partition=0, caller="me", body=body
    )


def older_than(name: str, change: Callable[[Any], None]) -> Any:
    schema = json.loads(registry.current(name).text)
    change(schema)
    return schema


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], Registry]:
    """Make the codec know another older version of a schema."""

    def do(name: str, schema: Any) -> Registry:
        folder = tmp_path / "schemas"
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        (path,) = folder.glob(f"*/{name}.v1.avsc")
        path.with_name(f"{name}.v0.avsc").write_text(json.dumps(schema))
        known = Registry(folder)
        monkeypatch.setattr(codec, "registry", known)
        return known

    return do


def written(schema: Any, datum: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(copy.deepcopy(schema), named_schemas={}), datum)
    return MARKER + fingerprint_of(schema) + out.getvalue()


def datum_of(record: Any) -> Any:
    parsed = registry.current(type(record).__name__).parsed
    return schemaless_reader(BytesIO(codec.encode(record)[codec.HEADER_BYTES :]), parsed, return_record_name=True)


def test_a_field_that_was_taken_away_is_skipped(plant):
    older = older_than(
        "KeyInfo", lambda schema: schema["fields"].insert(3, {"name": "acl", "type": "string", "default": ""})
    )
    assert unsafe_change(json.loads(registry.current("KeyInfo").text), older) == []
    plant("KeyInfo", older)
    assert decode(written(older, {**datum_of(KEY), "acl": "rw"})) == KEY


def test_fields_in_another_order(plant):
    older = older_than("KeyInfo", lambda schema: schema["fields"].reverse())
    plant("KeyInfo", older)
    assert decode(written(older, datum_of(KEY))) == KEY


def test_a_promoted_field(plant):
    older = older_than(
        "KeyInfo", lambda schema: next(f for f in schema["fields"] if f["name"] == "size").update(type="int")
    )
    plant("KeyInfo", older)
    assert decode(written(older, datum_of(KEY))) == KEY


def test_a_union_with_fewer_branches_in_another_order(plant):
    def shrink(schema: Any) -> None:
        field = next(f for f in schema["fields"] if f["name"] == "body")
        field["type"] = [
            branch for branch in reversed(field["type"]) if branch["name"] in ("CreateVolume", "DeleteKey")
        ]

    older = older_than("Request", shrink)
    plant("Request", older)
    for record in (request(DeleteKey(volume="v", bucket="b", key="k")), request(CreateVolume(volume="v", owner="o"))):
        assert decode(written(older, datum_of(record))) == record


def test_an_optional_record_of_an_older_version(plant):
    older = older_than("Batch", lambda schema: schema["fields"].append({"name": "extra", "type": "long"}))
    plant("Batch", older)
    batch = decode(encode(read_golden_batch()))
    assert batch.request_position is not None
    assert decode(written(older, {**datum_of(batch), "extra": 5})) == batch


def read_golden_batch() -> Batch:
    return Batch(
        term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32), first_index=1, last_index=0, timestamp_ms=1,
        request_position=RequestPosition(offset=1, leader_epoch=2, hash=bytes(16)),
        operations=[Put(cf="c", key=b"k", value=b"v", prev=None)], results=[],
    )  # fmt: skip


def test_what_no_version_knows_stays_unknown(plant):
    stranger = older_than("KeyInfo", lambda schema: schema["fields"].insert(0, {"name": "x", "type": "int"}))
    value = written(stranger, {**datum_of(KEY), "x": 1})
    with pytest.raises(UnknownSchema):
        decode(value)
    plant("KeyInfo", stranger)
    assert decode(value) == KEY


def test_the_current_version_resolves_to_itself():
    for version in registry:
        assert version.resolve_to is None
        assert registry.by_fingerprint(version.fingerprint) is version
        assert registry.versions(version.name)[0] is version


def test_versions_lists_the_current_one_first(plant):
    older = older_than("Tick", lambda schema: schema["fields"].append({"name": "x", "type": "int"}))
    known = plant("Tick", older)
    current, planted = known.versions("Tick")
    assert current is known.current("Tick")
    assert planted.fingerprint == fingerprint_of(older)
    assert planted.resolve_to is current.parsed


def test_ten_is_above_nine(tmp_path: Path):
    """Numbers count, not the order of names."""
    folder = tmp_path / "schemas"
    shutil.copytree(FOLDER, folder)
    for number in range(2, 11):
        schema = json.loads(registry.current("Tick").text)
        schema["fields"].append({"name": f"x{number}", "type": "int"})
        (folder / "log" / f"Tick.v{number}.avsc").write_text(json.dumps(schema))
    known = Registry(folder)
    assert known.current("Tick").parsed["fields"][-1]["name"] == "x10"
    assert [version.parsed["fields"][-1]["name"] for version in known.versions("Tick")[:-1]] == [
        f"x{number}" for number in range(10, 1, -1)
    ]


@pytest.mark.parametrize("called", ["Tick.avsc", "Tick.v.avsc", "Tick.v1a.avsc", "Tick.v-1.avsc"])
def test_a_file_without_a_number_is_named(tmp_path: Path, called: str):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / called).write_text(registry.current("Tick").text)
    with pytest.raises(ValueError, match=f"{called} is not called NAME.vN.avsc"):
        Registry(tmp_path)


def test_a_new_field_with_a_default_is_filled_in_when_old_values_are_read(tmp_path: Path):
    """The other direction of time: today's values under a future schema."""
    folder = tmp_path / "schemas"
    shutil.copytree(FOLDER, folder)
    future = json.loads(registry.current("KeyInfo").text)
    future["fields"].append({"name": "tags", "type": ["null", "string"], "default": None, "doc": "new"})
    (folder / "rows" / "KeyInfo.v99.avsc").write_text(json.dumps(future))
    known = Registry(folder)
    assert known.current("KeyInfo") is known.version("KeyInfo", 99)
    value = encode(KEY)
    version = known.by_fingerprint(value[2:10])
    assert version is not None
    read: Any = schemaless_reader(BytesIO(value[10:]), version.parsed, version.resolve_to)
    assert read["tags"] is None
    assert read["volume"] == "v"
    assert unsafe_change(future, json.loads(registry.current("KeyInfo").text)) == []


def test_unknown_name():
    with pytest.raises(KeyError):
        registry.current("Nothing")
    assert registry.by_fingerprint(bytes(8)) is None
    assert registry.versions("Nothing") == []

"""docs/limits.md names limits that exist, with the defaults that they have.

One test names every row that is wrong: a test for each row would be five hundred. Where what one limit allows must fit
into another one, both are set to their ends: numbers and names as long as they may be.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from om_processors.execution.requests.key import MAX_BLOCKS_PER_KEY, MAX_METADATA_BYTES
from om_processors.execution.requests.snapshot import MAX_PURGED_SNAPSHOTS, MAX_SNAPSHOTS
from om_processors.namespace.names import MAX_KEY_NAME_BYTES, MAX_NAME_CHARACTERS
from replicated_db.core.bootstrap.listing import (
    MAX_LISTED_FILES,
    MAX_LISTING_BYTES,
    Content,
    ListedFile,
    ListedPosition,
    Listing,
    TransferRequest,
)
from replicated_db.core.ports import MAX_CHECKPOINTS
from replicated_db.core.trimming.bases import MAX_BASES, Base
from replicated_db.core.trimming.places import MAX_DIGESTS, MAX_HOLDS, MemberPlace
from replicated_db.shell.backup.repository import MAX_MANIFEST_BYTES
from replicated_db.shell.bootstrap.content_digests import MAX_KEPT_DIGESTS
from replicated_db.shell.bootstrap.transfer_desk import MAX_TRANSFERS
from replicated_db.shell.trimming.member_calls import MAX_ANSWER_BYTES
from schemas.access.block_tokens import MAX_TOKENS_TOGETHER
from schemas.codecs.codec import encode
from schemas.records.datanode import (
    MAX_CONTAINERS_IN_REPORT,
    MAX_REPORTED_CONTAINERS,
    MAX_UNREADABLE,
    BlockReport,
    ContainerDigest,
    ContainerReport,
    PipelineReport,
)
from schemas.records.messages import CommitKey, CreateKey, PurgeSnapshots, Request
from schemas.records.packets import MAX_BLOCKS_TOGETHER
from schemas.records.rows import BlockLocation
from schemas.settings.values import MAX_NODES
from schemas.sharding import MAX_PIPELINES
from schemas.small_objects import MAX_RESERVED_BLOCKS
from schemas.topics import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from tests.support.om.fleets import heartbeat

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROW = re.compile(r"\| `([A-Za-z_.]+)` \| `([a-z_.]+)` \| ([0-9.,_]+) \| (.+) \|")


def rows() -> list[tuple[str, str, str, str]]:
    """Return name, module, documented default and what happens beyond it, of every limit on the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = [(line, ROW.fullmatch(line)) for line in lines]
    assert [line for line, match in found if not match] == [], "rows that cannot be read"
    return [(match[1], match[2], match[3], match[4]) for _, match in found if match]


def value_of(name: str, module: str) -> Any:
    """Return a module's constant, or the default of a field of one of its dataclasses."""
    place: Any = importlib.import_module(module)
    if "." not in name:
        return getattr(place, name)
    cls, field = name.split(".")
    return next(found.default for found in dataclasses.fields(getattr(place, cls)) if found.name == field)


def test_a_limit_has_the_default_that_is_documented() -> None:
    documented = {f"{module}.{name}": default for name, module, default, _ in rows()}
    defaults = {f"{module}.{name}": f"{value_of(name, module):,}" for name, module, _, _ in rows()}
    assert defaults == documented
    assert len(documented) == len(rows()), "a limit is on the page twice"


def test_a_row_says_what_happens_beyond_the_limit() -> None:
    assert [f"{module}.{name}" for name, module, _, beyond in rows() if not beyond.strip()] == []


def test_the_page_is_not_empty() -> None:
    names = {name for name, _, _, _ in rows()}
    assert {
        "Settings.max_queued_requests",
        "Policy.max_in_flight",
        "LeaderLimits.max_in_flight",
        "MAX_MESSAGE_BYTES",
    } <= names


# -- what one limit allows fits into the other ------------------------------------------------------------------------

MOST = 2**63 - 1
NAME = "n" * 63
FILES_OF_A_CHECKPOINT = 900
"""Files of a shard's database, of up to 64 MiB each, with which it can still be installed and backed up."""


def listing_of(files: int) -> Listing:
    """Return a listing in which each file is also linked, and as many contents are to be removed."""
    content = Content("f" * 32, 2**40)
    listed = [ListedFile(f"checkpoints/snapshot-{MOST - one}/{one:06}.sst", content) for one in range(files)]
    return Listing(
        transfer="f" * 32, node=NAME, cluster=NAME, shard=0, shards=1, leader=NAME,
        position=ListedPosition(term=MOST, index=MOST, offset=MOST, record_hash=bytes(16)),
        files=tuple(listed), links=(tuple(one.path for one in listed),), kept=frozenset(),
        remove=frozenset(Content(f"{one:032x}", 2**40) for one in range(files)),
    )  # fmt: skip


def test_every_snapshot_of_a_shard_can_be_listed_with_its_files() -> None:
    trees = MAX_SNAPSHOTS + MAX_CHECKPOINTS + 1
    assert trees * FILES_OF_A_CHECKPOINT <= MAX_LISTED_FILES <= MAX_KEPT_DIGESTS


def test_a_listing_of_the_most_files_fits_into_a_record_and_into_a_manifest() -> None:
    files = 1_000
    times = MAX_LISTED_FILES // files
    made = listing_of(files)
    assert len(json.dumps(made.to_json())) * times <= MAX_LISTING_BYTES
    assert len(json.dumps({"parts": [{"listing": made.to_json()}]}, indent=1)) * times <= MAX_MANIFEST_BYTES
    asked = TransferRequest(
        asker=NAME, cluster=NAME, shard=0, shards=1, offset=MOST, have=made.remove,
        folders={f"snapshot-{MOST - one}": "f" * 32 for one in range(MAX_SNAPSHOTS)},
    )  # fmt: skip
    assert len(json.dumps(asked.to_json())) * times <= MAX_LISTING_BYTES


def test_a_members_place_fits_into_its_answer() -> None:
    place = MemberPlace(
        node=NAME, cluster=NAME, shard=MOST, offset=MOST, keeps_from=MOST, index=MOST, flagged=False,
        members=(NAME,) * MAX_NODES, bases=(Base(MOST, MOST, bytes(32)),) * MAX_BASES,
        digests=((MOST, "f" * 64),) * (MAX_DIGESTS + 1), holds=(MOST,) * MAX_HOLDS,
    )  # fmt: skip
    assert len(json.dumps(place.to_json())) <= MAX_ANSWER_BYTES
    assert MAX_TRANSFERS <= MAX_HOLDS


def test_what_a_datanode_reports_fits_into_a_record_of_a_topic() -> None:
    container = ContainerReport(
        container_id=MOST, partition=0, closed=True, blocks=2**31 - 1, used_bytes=MOST, healthy=True
    )  # fmt: skip
    pipeline = PipelineReport(
        partition=0, generation=MOST, leading=True, applied_index=MOST, healthy=False, fault="f" * 1_000
    )
    beat = replace(
        heartbeat(NAME), containers=[container] * MAX_REPORTED_CONTAINERS, pipelines=[pipeline] * MAX_PIPELINES
    )
    assert len(encode(beat)) <= MAX_MESSAGE_BYTES
    digest = ContainerDigest(container_id=MOST, blocks=2**31 - 1, used_bytes=MOST, digest=MOST, unreadable=[])
    named = replace(digest, unreadable=[bytes(16)] * MAX_UNREADABLE)
    report = BlockReport(
        cluster=NAME, datanode=NAME, partition=0, index=MOST, log_offset=MOST, complete=True, reported_at_ms=MOST,
        containers=[named] + [digest] * (MAX_CONTAINERS_IN_REPORT - 1),
    )  # fmt: skip
    assert len(encode(report)) <= MAX_MESSAGE_BYTES


def test_a_request_with_the_most_of_everything_fits_into_a_request() -> None:
    block = BlockLocation(
        container_id=MOST, local_id=MOST, offset=MOST, length=MOST, pipeline=f"pipeline-{MAX_PIPELINES}", bcs_id=MOST
    )
    place = {"volume": "v" * MAX_NAME_CHARACTERS, "bucket": "b" * MAX_NAME_CHARACTERS, "key": "k" * MAX_KEY_NAME_BYTES}
    commit = CommitKey(**place, session_id=MOST, size=MOST, blocks=[block] * MAX_BLOCKS_PER_KEY)
    create = CreateKey(**place, size=MOST, metadata={"m": "m" * (MAX_METADATA_BYTES - 1)})
    purge = PurgeSnapshots(shard=0, rows=[b"r" * 3 * (MAX_NAME_CHARACTERS + 1)] * MAX_PURGED_SNAPSHOTS)
    for body in (commit, create, purge):
        request = Request(
            client_id=bytes(16), call_id=MOST, first_sent_at_ms=MOST, answered_below=MOST, reply_partition=0,
            caller=NAME, body=body,
        )  # fmt: skip
        assert len(encode(request)) <= MAX_REQUEST_BYTES


def test_blocks_that_travel_together_get_their_tokens_together() -> None:
    assert MAX_RESERVED_BLOCKS <= MAX_TOKENS_TOGETHER
    assert MAX_BLOCKS_TOGETHER <= MAX_TOKENS_TOGETHER

"""``poison-request``: records that no leader can or may execute go straight into ``om.requests``.

Bytes that are no request are rejected to ``om.requests.rejected`` with the reason. Refused requests are answered with
their code. Nothing stops, no leader steps down, and the digest of the data (all families but the retry rows) stays the
same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from confluent_kafka import KafkaException, Message, Producer

from producers.errors import StratologError
from schemas import result_codes as codes
from schemas.codecs.codec import encode, header_of
from schemas.codecs.registry import FINGERPRINT_BYTES, MARKER
from schemas.column_families import BUCKETS
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.messages import (
    CreateBucket,
    CreateKey,
    CreatePipeline,
    CreateVolume,
    ExpireOpenKeys,
    PurgeBlocks,
    Request,
    RequestBody,
    Requests,
    RetirePipeline,
    SetDatanodeState,
)
from schemas.topics import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, OM_REQUESTS
from stratolog.drills.core import digest_findings, request_findings
from stratolog.drills.core.log_digest import Sums, differing, unsigned
from stratolog.drills.core.report import CouldNotRun, StepFailed
from stratolog.drills.core.request_findings import Answered, Rejection, Standing
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import client_of, volume_name
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import AnswerTap, RejectedTap, now_ms
from stratolog.local.processes import wait_until
from stratolog.local.state import NODE

TIMEOUT_S = 60.0
AN_HOUR_MS = 3_600_000
ATTEMPTS = 20
"""Each attempt takes a second or so; nodes purge every two seconds while there is something to purge."""
OWN_REQUESTS = frozenset(
    kind.__name__ for kind in (CreatePipeline, RetirePipeline, SetDatanodeState, PurgeBlocks, ExpireOpenKeys)
)
"""Types of requests that nodes make by themselves (om_processors/fleet/proposer.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """A record to send: a name, its bytes, the code expected, and the call that is answered (None: it is rejected)."""

    name: str
    value: bytes
    code: str
    call_id: int | None = None


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill; repeat it while the nodes' own requests disturb it."""
    with session.step("check that the stack is whole"):
        cluster.check_whole()
    for _ in range(ATTEMPTS):
        if _attempt(session, cluster, shard):
            break
    else:
        raise CouldNotRun(f"the nodes tidy up shard {shard} all the time, so its digest moves anyway: try again later")
    with session.step("write and delete a volume, as anybody would"):
        _write_something(session, cluster, shard)


def _attempt(session: Session, cluster: Cluster, shard: int) -> bool:
    """Send the records and judge; return False, without findings, if the nodes themselves changed rows meanwhile.

    After a drill that wrote keys, nodes purge its deleted keys for some seconds. Raises CouldNotRun if others write.
    """
    client_id = os.urandom(16)
    servers = cluster.settings.connection
    poisons = poisons_of(client_id, shard, cluster.settings.shards)
    with AnswerTap(servers, client_id) as answers, RejectedTap(servers) as rejected:
        with session.step("note where everybody stands, and the digest of the data"):
            offset = _await_all(cluster, shard)
            before, digests = _standing(cluster, shard), _data_digests(cluster, shard)
        session.touched.append(f"{len(poisons)} records of {OM_REQUESTS}/{shard}, which nobody executes")
        with session.step(f"send {len(poisons)} records to {OM_REQUESTS}/{shard}"):
            offsets = _send(servers, shard, poisons)
        with session.step("wait for rejections and answers") as found:
            seen = _outcomes(shard, poisons, offsets, answers, rejected)
            found(f"{len(seen)} of {len(poisons)}")
    with session.step("compare where everybody stands, and the digest of the data") as found:
        _await_all(cluster, shard)
        after = _data_digests(cluster, shard)
        if any(differing(digests[name], after[name]) for name in cluster.names):
            others = survey(cluster.settings, shard, client_id=client_id, since=offset + 1).others
            if foreign := others - OWN_REQUESTS:
                raise CouldNotRun(
                    f"others write to shard {shard} ({', '.join(sorted(foreign))}), so its digest moves anyway: try "
                    "again when it is quiet"
                )
            if others:
                found(f"the nodes themselves changed rows meanwhile ({', '.join(sorted(others))}): once more")
                return False
    session.find(
        *(request_findings.poison_refused(poison.name, poison.code, seen.get(poison.name)) for poison in poisons)
    )
    session.find(
        digest_findings.data_unchanged(digests, after),
        request_findings.nothing_stopped(before, _standing(cluster, shard)),
    )
    return True


def poisons_of(client_id: bytes, shard: int, shards: int) -> list[Poison]:
    """Return the records to send. Pure but for the clock."""
    calls = count(1)

    def request(body: RequestBody, age_ms: int = 0) -> tuple[int, bytes]:
        call_id = next(calls)
        value = Request(
            client_id=client_id, call_id=call_id, first_sent_at_ms=now_ms() - age_ms, answered_below=1,
            reply_partition=0, caller="drill", body=body,
        )  # fmt: skip
        return call_id, encode(value)

    own = volume_name("poison", shard, shards)
    foreign = volume_name("poison", (shard + 1) % shards, shards)
    _, good = request(CreateVolume(volume=own))
    unknown = MARKER + b"\x11" * FINGERPRINT_BYTES + good[len(MARKER) + FINGERPRINT_BYTES :]
    large = CreateKey(volume=own, bucket="bucket", key="key", size=0, metadata={"large": "x" * MAX_REQUEST_BYTES})
    found = [
        Poison(name="bytes that are no Avro", value=b"poison", code=codes.UNDECODABLE),
        Poison(name="an empty record", value=b"", code=codes.UNDECODABLE),
        Poison(name="a request cut off in the middle", value=good[: len(good) // 2], code=codes.UNDECODABLE),
        Poison(name="a schema that nobody knows", value=unknown, code=codes.UNKNOWN_SCHEMA),
        Poison(name="an envelope of rubbish", value=header_of(Requests) + b"\xff" * 20, code=codes.UNDECODABLE),
        Poison(name="rubbish over the size limit", value=bytes(MAX_REQUEST_BYTES + 1), code=codes.REQUEST_TOO_LARGE),
    ]
    refused: list[tuple[str, RequestBody, str, int]] = [
        ("a request over the size limit", large, codes.REQUEST_TOO_LARGE, 0),
        ("a request whose execution is refused", CreateBucket(volume=own, bucket="bucket"), codes.VOLUME_NOT_FOUND, 0),
        ("a request with an illegal name", CreateVolume(volume="Not A Name"), codes.INVALID_VOLUME_NAME, 0),
        ("a request of an hour ago", CreateVolume(volume=own), codes.REQUEST_EXPIRED, AN_HOUR_MS),
    ]
    if shards > 1:
        refused.append(("a request for another shard", CreateVolume(volume=foreign), codes.WRONG_SHARD, 0))
    for name, body, code, age_ms in refused:
        call_id, value = request(body, age_ms)
        found.append(Poison(name=name, value=value, code=code, call_id=call_id))
    return found


def _send(servers: Brokers, shard: int, poisons: list[Poison]) -> dict[str, int]:
    """Produce the records; return the offset of each by name. Raises StepFailed if the broker does not take them."""
    producer = Producer(
        client_settings(servers, {"linger.ms": 0, "message.max.bytes": MAX_MESSAGE_BYTES, "log_level": 0})
    )
    offsets: dict[str, int] = {}

    def produce(poison: Poison) -> None:
        def on_delivered(error: object, message: Message) -> None:
            if error is None:
                offsets[poison.name] = message.offset() or 0

        producer.produce(OM_REQUESTS, poison.value, partition=shard, on_delivery=on_delivered)

    try:
        for poison in poisons:
            produce(poison)
    except (KafkaException, BufferError) as error:
        raise StepFailed(f"{OM_REQUESTS} cannot be written: {error}") from error
    producer.flush(TIMEOUT_S)
    if len(offsets) < len(poisons):
        raise StepFailed(f"the broker took {len(offsets)} of {len(poisons)} records")
    return offsets


def _outcomes(
    shard: int, poisons: list[Poison], offsets: Mapping[str, int], answers: AnswerTap, rejected: RejectedTap
) -> dict[str, Rejection | Answered]:  # fmt: skip
    """Wait until each record was rejected or answered; return the outcomes by name, without records that have none."""
    found: dict[str, Rejection | Answered] = {}

    def is_complete() -> bool:
        rejections = rejected.rejected()
        for poison in poisons:
            rejection = rejections.get((shard, offsets[poison.name]))
            if rejection is not None:
                found[poison.name] = Rejection(code=rejection.reason, message=rejection.message)
            elif poison.call_id is not None and (response := answers.answer(poison.call_id)) is not None:
                found[poison.name] = Answered(code=response.status, message=response.message)
        return len(found) == len(poisons)

    wait_until(is_complete, TIMEOUT_S)
    return found


def _await_all(cluster: Cluster, shard: int) -> int:
    """Wait until all nodes have read as far as the leader; return its offset."""
    return max(cluster.wait_caught_up(name, shard) for name in cluster.names)


def _data_digests(cluster: Cluster, shard: int) -> dict[str, Sums]:
    """Return each node's digest of all families but the retry rows, which have the first slots."""
    found = {}
    for name in cluster.names:
        answer = cluster.get(name, f"/v1/shards/{shard}/digest")
        found[name] = {s: total for s, total in unsigned(answer["slots"], answer["sums"]).items() if s >= BUCKETS}
    return found


def _standing(cluster: Cluster, shard: int) -> dict[str, Standing]:
    """Return for each node its process, and the leader and term that it knows of the shard."""
    found = {}
    for name in cluster.names:
        process, view = cluster.member(NODE, name).process, cluster.view(name, shard)
        pid = process.pid if process.is_running() else None
        found[name] = Standing(pid=pid, leader=str(view.get("leader")), term=int(view.get("term", -1)))
    return found


def _write_something(session: Session, cluster: Cluster, shard: int) -> None:
    volume = volume_name("poison-request", shard, cluster.settings.shards)
    with client_of(cluster.settings, deadline_ms=int(TIMEOUT_S * 1000)) as client:
        session.touched.append(f"volume {volume}, of this drill's own")
        try:
            client.create_volume(volume)
            client.delete_volume(volume)
        except StratologError as error:
            session.find(request_findings.still_writes(str(error)))
        else:
            session.restored.append(f"{volume} is deleted")
            session.find(request_findings.still_writes(None))

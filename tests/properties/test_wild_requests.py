"""Wild requests with wild keys at the gate of a leader that demands signatures: nothing is raised, and only what is signed passes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from om_processors.intake.gateway import Gateway, Received
from replicated_db.core.leading.leader import Proposal, Reply
from schemas.access.credentials import TokenName, client_prefix, credentials_of
from schemas.access.signatures import seal_of
from schemas.codecs.codec import Undecodable, decode_as
from schemas.codecs.envelopes import requests_in
from schemas.kafka.reply_keys import reply_in
from schemas.privilege import is_privileged
from schemas.records.identity import CreateUser
from schemas.records.messages import Rejected, Request
from schemas.result_codes import OK
from tests.chaos.fuzz.arms import MALLORY, Arms
from tests.chaos.fuzz.requests import WildRequests
from tests.properties.examples import examples
from tests.support.local.secret import SECRET
from tests.support.om.door_site import DoorSite


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite(signed=True) as found:
        found.position.index = 10_000
        yield found


def test_no_wild_request_passes_unsigned_and_none_stops_the_gate(site: DoorSite, tmp_path: Path) -> None:
    site.world.do(CreateUser(user=MALLORY))
    own = credentials_of(SECRET, TokenName(user=MALLORY, generation=site.world.index, number=0))
    file = tmp_path / "credentials"
    file.write_text(own.text())
    arms = Arms(
        cluster="c", brokers="", kafka={}, node="", datanodes={}, web={}, broker_ports=(), audit_ports=(), ca="", certificate="", credentials=str(file),
        volume="vault", bucket="bucket", keys=("k",), blocks=((0, 1, 2),), blocks_are_guarded=True, canary="canary",
    )  # fmt: skip
    made = WildRequests(arms, random.Random(19))
    gateway = Gateway(shard=0, node="om1", secret=SECRET, identities=site.identities)
    seen: Counter[str] = Counter()
    for _ in range(examples(9_000)):
        key, value, _ = made.record()
        seal = seal_of(key, value)
        _, plain = reply_in(key if seal is None else seal.rest or None)
        try:
            requests = requests_in(value)
        except Undecodable:
            continue
        for one in requests:
            admitted = gateway.admit(Received(offset=0, value=one, key=plain, seal=seal), 0)
            seen[type(admitted).__name__] += 1
            if isinstance(admitted, Proposal):
                request = decode_as(Request, one)
                assert seal is not None
                assert seal.is_of(own)
                assert admitted.standing is not None
                assert not admitted.standing.administrator
                assert request.caller == MALLORY
                assert request.client_id.startswith(client_prefix(MALLORY))
                assert not is_privileged(request.body)
            else:
                assert isinstance(admitted, Reply | Rejected)
                assert not isinstance(admitted, Reply) or OK.encode() not in admitted.response[:40]
    assert all(seen[kind] > 50 for kind in ("Proposal", "Reply", "Rejected")), seen

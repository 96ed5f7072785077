"""Clusters that demand signatures, by seed: forgers, users who are removed, rights that change; and planted mistakes are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution.requests import identity
from om_processors.identity import identities
from om_processors.namespace import access, users
from om_processors.namespace.access import AclAuthorizer
from schemas.access import acl
from schemas.access.credentials import MAX_NUMBER
from schemas.access.signatures import Seal
from schemas.records.identity import TokenRow, UserRow
from tests.simulation.callers import simulate_callers
from tests.simulation.truth import Violation

SEEDS, MORE_SEEDS, CHUNK = 12, 612, 100
WANTED = (
    "forged", "let through: operator", "let through: user", "at the gate: PERMISSION_DENIED", "rights: user denied",
    "rights: user not denied", "lists compared", "CreateUser: OK", "RemoveUser: OK", "ChangeAcl: OK", "ChangeAcl: refused",
    "RotateUser: OK", "let through: former secret", "GetDelegationToken: OK", "let through: token",
    "CancelDelegationToken: OK", "CancelDelegationToken: refused", "ReserveBlocks: OK", "CommitReserved: OK",
    "CommitReserved: refused", "ReleaseBlocks: OK",
)  # fmt: skip


def broken(seeds: range) -> tuple[int, str] | None:
    """Return the first seed that fails, and how."""
    for seed in seeds:
        _, failure = simulate_callers(seed)
        if failure is not None:
            return seed, f"{type(failure.error).__name__}: {failure.error}"
    return None


def test_nobody_has_an_effect_that_he_may_not_have():
    seen: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        world, failure = simulate_callers(seed)
        assert failure is None, f"seed {seed}: {failure.error!r}"
        seen.update(world.seen)
    assert [what for what in WANTED if not seen[what]] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", range(SEEDS + 1, MORE_SEEDS + 1, CHUNK))
def test_nor_by_many_more_seeds(start: int):
    assert broken(range(start, start + CHUNK)) is None


def test_a_seed_gives_the_same_trace_each_time():
    assert simulate_callers(3)[0].fingerprint() == simulate_callers(3)[0].fingerprint()


def everything_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seal, "is_of", lambda *_: True)


def findings_are_believed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "KNOWN_MS", 10**12)


def any_client_id_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "CLIENT_PREFIX_BYTES", 0)
    monkeypatch.setattr(identities, "client_prefix", lambda _: b"")


def everybody_may_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AclAuthorizer, "authorize", lambda *_: None)


def a_delete_needs_no_write_on_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "IN_BUCKET", {**access.IN_BUCKET, acl.DELETE: acl.READ})


def former_secrets_are_taken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_user(rows: Any, user: str) -> UserRow | None:
        row = users.get_user(rows, user)
        return None if row is None else replace(row, previous_until_ms=MAX_NUMBER)

    monkeypatch.setattr(identities, "users", SimpleNamespace(get_user=get_user, get_token=users.get_token))


def cancelled_tokens_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[tuple[str, int], TokenRow] = {}

    def get_token(rows: Any, owner: str, number: int) -> TokenRow | None:
        row = users.get_token(rows, owner, number)
        if row is not None:
            known[owner, number] = row
        return row or known.get((owner, number))

    monkeypatch.setattr(identities, "users", SimpleNamespace(get_user=users.get_user, get_token=get_token))


def a_token_makes_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        identity, "_standing_of_owner", lambda prepared, _: replace(prepared.standing, generation=1, token=0)
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "plant", [
        everything_is_signed, findings_are_believed_for_ever, any_client_id_will_do, everybody_may_everything,
        a_delete_needs_no_write_on_the_bucket, former_secrets_are_taken_for_ever, cancelled_tokens_are_believed,
        a_token_makes_tokens,
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    found = broken(range(1, 300))
    assert found is not None
    assert found[1].startswith(Violation.__name__), found

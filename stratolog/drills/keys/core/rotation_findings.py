"""Findings on keys that were changed under load. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.wording import named


def nothing_refused(acknowledged: Mapping[str, int], failures: Sequence[str]) -> Finding:
    """Judge the load: every way in has gone on, and no call of anybody with good keys has failed."""
    silent = [way for way, number in acknowledged.items() if not number]
    seen = ", ".join(f"{number} by {way}" for way, number in acknowledged.items())
    return Finding(
        question="no write was refused while keys were changed, by any way in",
        holds=bool(acknowledged) and not silent and not failures,
        seen=named(list(failures)) if failures else f"acknowledged: {seen}",
    )


def all_there(acknowledged: Sequence[str], listed: Sequence[str]) -> Finding:
    """Judge whether every acknowledged key is there."""
    missing = sorted(set(acknowledged) - set(listed))
    return Finding(
        question="every acknowledged key is there", holds=bool(acknowledged) and not missing,
        seen=named(missing) if missing else f"{len(set(acknowledged))} keys",
    )  # fmt: skip


def old_is_refused(answers: Mapping[str, str]) -> Finding:
    """Judge what was said to each old key: a refusal; an empty text: it was taken."""
    taken = [what for what, said in answers.items() if not said]
    return Finding(
        question="old keys are refused", holds=bool(answers) and not taken,
        seen=f"taken: {named(taken)}" if taken else ", ".join(answers),
    )  # fmt: skip


def certificates_are_new(before: Mapping[str, str], after: Mapping[str, str]) -> Finding:
    """Judge the serial numbers of the certificates that servers show to new connections, by server."""
    same = [server for server, number in before.items() if after.get(server, number) == number]
    return Finding(
        question="every server shows its new certificate, without a restart", holds=bool(before) and not same,
        seen=f"still the old one: {named(same)}" if same else f"{len(before)} servers",
    )  # fmt: skip

"""Findings on digests of running and rebuilt replicas, and on where a replica resumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.log_digest import Sums, differing, total
from stratolog.drills.core.log_survey import Digest
from stratolog.drills.core.wording import named, slots_named


def digests_equal(nodes: Sequence[str], reported: Mapping[str, Sums], log: Digest, *, basis: str) -> Finding:
    """Judge whether all nodes have reported one digest, equal to the log's Σ(next − prev) if the log gives it."""
    missing = [node for node in nodes if node not in reported]
    truth = log.sums if log.known else next(iter(reported.values()), {})
    wrong = [
        f"{node} differs in {slots_named(log.families, slots)}"
        for node, sums in reported.items()
        if (slots := differing(sums, truth))
    ]
    compared = (
        "the log's Σ(next − prev)" if log.known else "each other (the log alone does not give it: late validation)"
    )
    if missing:
        seen = f"no report from {', '.join(missing)}"
    else:
        seen = named(wrong) if wrong else f"{total(truth)} at index {log.index} on {', '.join(sorted(reported))}"
    return Finding(
        question=f"{basis} digests at offset {log.offset} are equal to {compared}",
        holds=not wrong and not missing and bool(reported),
        seen=seen,
    )


def rules_agree(rules_differ: int | None) -> Finding:
    """Judge whether the nodes' and the auditor's reading rules say the same of every record."""
    return Finding(
        question="the nodes' and the auditor's reading rule agree on every record",
        holds=rules_differ is None,
        seen="they do" if rules_differ is None else f"not on offset {rules_differ}",
    )


def resumed(stored: int, read_offset: int, records_read: int) -> Finding:
    """Judge where a node resumed: it must begin right behind its stored position, and read each record once."""
    began = read_offset - records_read
    return Finding(
        question="the replica went on from its own position",
        holds=began == stored and stored >= 0,
        seen=f"stored offset {stored}, began behind {began}, read {records_read} records up to {read_offset}",
    )


def data_unchanged(before: Mapping[str, Sums], after: Mapping[str, Sums]) -> Finding:
    """Judge each node's digest of the data before and after."""
    wrong = [node for node, sums in before.items() if differing(sums, after.get(node, {}))]
    return Finding(
        question="the digest of the data is unchanged on every node",
        holds=not wrong and bool(before),
        seen=f"changed on {', '.join(wrong)}"
        if wrong
        else named(f"{node} {total(sums)}" for node, sums in after.items()),
    )


def rebuilt_equal(rebuilt: Mapping[str, Sums], log: Digest) -> Finding:
    """Judge a rebuilt replica's digests (running and scanned, by name) against the log's Σ(next − prev)."""
    wrong = [
        f"its {basis} digest differs in {slots_named(log.families, slots)}"
        for basis, sums in rebuilt.items()
        if (slots := differing(sums, log.sums))
    ]
    return Finding(
        question=(
            f"the rebuilt replica at index {log.index} is equal to the log's Σ(next − prev), running digest and full "
            "scan"
        ),
        holds=not wrong, seen=named(wrong) if wrong else total(log.sums),
    )  # fmt: skip


def scan_equal(incremental: Sums, scrubbed: Sums) -> Finding:
    """Judge a rebuilt replica by itself, where the log alone does not give the digest."""
    return Finding(
        question=(
            "the rebuilt replica's running digest is equal to its full scan (the log alone does not give it: late "
            "validation)"
        ),
        holds=incremental == scrubbed, seen=f"{total(incremental)} and {total(scrubbed)}",
    )  # fmt: skip


def no_evidence(evidence: str | None) -> Finding:
    """Judge whether a replay has found a row that is not what the log claims."""
    return Finding(
        question="every claim of the log was true when it was applied",
        holds=evidence is None,
        seen=evidence or "no evidence",
    )


def live_equal(live: Mapping[str, Sums], rebuilt: Sums, families: Sequence[str], silent: Sequence[str]) -> Finding:
    """Judge live replicas' digests at the same index; ``silent`` are the nodes whose digest there is unknown."""
    wrong = [
        f"{name} differs in {slots_named(families, slots)}"
        for name, sums in live.items()
        if (slots := differing(sums, rebuilt))
    ]
    missing = f"; not to be had of {', '.join(silent)}" if silent else ""
    return Finding(
        question="live replicas had the same digest at that index",
        holds=not wrong and bool(live),
        seen=(named(wrong) if wrong else f"{', '.join(sorted(live)) or 'none'}") + missing,
    )


def oracle_equal(digest: str, index: int, log: Digest) -> Finding:
    """Judge the batch oracle's digest: Spark recomputes the rows, and uses no claimed hash of the log."""
    return Finding(
        question="Spark's oracle, which uses no claim of the log's, comes to the same",
        holds=(digest, index) == (total(log.sums), log.index), seen=f"{digest} at index {index}",
    )  # fmt: skip

"""How far one shard's log may be trimmed (design, section 7). Pure: what is known goes in, a decision comes out.

Every rule names the offset from which it needs the log, and says why. The lowest of them limits all. The log is then
trimmed to the newest *base* (``bases``) at or below that limit, so that a trimmed log begins with a record from which
the audit can begin. Rules:

    members     every member of the log's last Members record has told its durable position, but for those that are
                left behind. No member needs what lies before its own ``keeps_from``. The log has what each has read
                (:func:`lost`): one that has lost its end may have to rebuild all of them.
    majority    what is deleted is in the fsynced state of a majority of all members; flagged members do not count
    transfers   no transfer of a checkpoint needs the records from its position on
    audit       the audit has judged what lies before, or has been silent for AUDIT_SILENCE_MS since the base was logged
    agreement   the audit's last verdicts name no member ``diverged``: what lies before a base is never judged again.
                A node that was removed has no verdicts to come, so its last one does not count
    keep        the operator keeps so many of the last records, or all records of so long a time
    base        there is a base at or below the limit that the leader and a majority of the members have read and agree
                with, flagged ones and those left behind not counted

What is not known allows nothing: a member that does not answer ends it, unless it is left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replicated_db.core.trimming.bases import Base
from replicated_db.core.trimming.places import AuditPlace, MemberPlace

AUDIT_SILENCE_MS = 86_400_000
"""An audit that has not come past a base within this time after it was logged no longer holds the log."""

NOTHING = 0
"""What a rule allows that does not know enough: nothing lies before the log's first offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimWish:
    """What an operator, or the setting, asks for.

    ``keep_records``: how many records are kept at the log's end. ``keep_ms``: bases younger than this are not used.
    ``leave_behind``: members whose position does not matter. ``without_audit``: whether the audit's place does not.
    """

    keep_records: int = 0
    keep_ms: int = 0
    leave_behind: frozenset[str] = frozenset()
    without_audit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimFacts:
    """What is known of one shard.

    ``first``, ``end``: the log's bounds. ``answers``: by member, its place, or in words why it is not known. ``audit``:
    None if no audit is known to have judged the shard; a text if it cannot be told. ``logged_at_ms``: for each
    base of the leader's, when the broker appended it; a base that is left out is not used.
    """

    first: int
    end: int
    now_ms: int
    answers: Mapping[str, MemberPlace | str]
    audit: AuditPlace | str | None = None
    logged_at_ms: Mapping[Base, int] = field(default_factory=dict)

    def age_ms(self, base: Base) -> int:
        """Return how long ago a base was logged."""
        return max(0, self.now_ms - self.logged_at_ms[base])


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFinding:
    """One rule: the first offset that it keeps (``allows``), whether it allows less than was wished, and why."""

    rule: str
    allows: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimDecision:
    """The log is trimmed to ``offset``: that record is the first one kept. ``base`` is None if nothing is deleted.

    ``held_by``: the rule that keeps the log from being trimmed further.
    """

    first: int
    end: int
    offset: int
    base: Base | None
    findings: tuple[RuleFinding, ...]
    held_by: RuleFinding

    @property
    def records(self) -> int:
        """How many records are deleted."""
        return self.offset - self.first

    def to_json(self) -> dict[str, Any]:
        """Return the decision as plain values."""
        return {
            "first": self.first, "end": self.end, "offset": self.offset, "records": self.records,
            "base": None if self.base is None else {"offset": self.base.offset, "index": self.base.index}, "held_by": self.held_by.rule,
            "rules": [{"rule": one.rule, "allows": one.allows, "why": one.why} for one in self.findings],
        }  # fmt: skip


def members_of(answers: Mapping[str, MemberPlace | str]) -> tuple[str, ...]:
    """Return the shard's members, as the member says that has read furthest; none if nobody knows."""
    known = [place for place in answers.values() if isinstance(place, MemberPlace) and place.members]
    return max(known, key=lambda place: place.offset).members if known else ()


def lost(place: MemberPlace, found: str | None) -> str | None:
    """Say that the log has no longer what a member has read last; None if it has, or an earlier version answers.

    ``found``: the hash of the log's record at the member's offset, None if there is none.
    """
    if place.offset < 0 or not place.record_hash or found == place.record_hash:
        return None
    return f"the log does not hold at {place.offset} what it has read there: the log has lost its end"


def decide(facts: TrimFacts, wish: TrimWish) -> TrimDecision:
    """Return how far the log may be trimmed, with the finding of every rule."""
    members = members_of(facts.answers)
    places = [place for name in members if isinstance(place := facts.answers.get(name), MemberPlace)]
    limits = [
        _members(facts, wish, members),
        _majority(members, places, wish),
        _transfers(facts, places),
        _keep(facts, wish),
        _agreement(facts, wish, members),
    ]
    limit = min(finding.allows for finding in limits)
    known = _bases_of_majority(members, places, wish)
    held = [base for base in known if base in facts.logged_at_ms]
    old = [base for base in held if facts.age_ms(base) >= wish.keep_ms]
    below = [base for base in old if base.offset <= limit]
    audit = _audit(facts, wish, below)
    usable = [base for base in below if base.offset <= audit.allows]
    base = usable[-1] if usable and usable[-1].offset > facts.first else None
    by_base = _base_finding(facts, wish, known, held, old, usable)
    others = (*limits, audit)
    lowest = min(others, key=lambda finding: finding.allows)
    is_held = any(base.offset > lowest.allows for base in old)
    return TrimDecision(
        first=facts.first, end=facts.end, offset=facts.first if base is None else base.offset, base=base,
        findings=(*others, by_base), held_by=lowest if is_held or lowest.allows <= facts.first else by_base,
    )  # fmt: skip


# -- rules -----------------------------------------------------------------------------------------------------------


def _members(facts: TrimFacts, wish: TrimWish, members: Sequence[str]) -> RuleFinding:
    if not members:
        told = "; ".join(f"{name}: {why}" for name, why in facts.answers.items() if isinstance(why, str))
        why = "no node that answers knows the shard's members" + (f" ({told})" if told else "")
        return RuleFinding(rule="members", allows=NOTHING, why=why)
    slowest: MemberPlace | None = None
    for name in members:
        if name in wish.leave_behind:
            continue
        place = facts.answers.get(name, "it was not asked")
        if isinstance(place, str):
            return RuleFinding(
                rule="members", allows=NOTHING, why=f"{name} is a member and its position is not known: {place}"
            )
        if place.offset >= facts.end:
            why = f"{name} has read offset {place.offset}, but the log ends at {facts.end}: it has lost its end"
            return RuleFinding(rule="members", allows=NOTHING, why=why)
        if slowest is None or place.keeps_from < slowest.keeps_from:
            slowest = place
    if slowest is None:
        return RuleFinding(rule="members", allows=NOTHING, why="every member would be left behind")
    left = ", ".join(name for name in members if name in wish.leave_behind)
    behind = f"; left behind: {left}, which then needs a checkpoint from a peer" if left else ""
    if slowest.offset < 0:
        why = f"{slowest.node} has read nothing yet{behind}"
    else:
        why = f"{slowest.node} is the slowest: its fsynced state is at offset {slowest.offset}{behind}"
    return RuleFinding(rule="members", allows=slowest.keeps_from, why=why)


def _majority(members: Sequence[str], places: Sequence[MemberPlace], wish: TrimWish) -> RuleFinding:
    needed = len(members) // 2 + 1
    healthy = sorted(
        (place for place in places if not place.flagged and place.node not in wish.leave_behind),
        key=lambda place: place.keeps_from,
    )
    if not members or len(healthy) < needed:
        flagged = ", ".join(place.node for place in places if place.flagged)
        why = f"{len(healthy)} of {len(members)} members are known, healthy and not left behind; {needed} are needed"
        return RuleFinding(rule="majority", allows=NOTHING, why=why + (f" (flagged: {flagged})" if flagged else ""))
    last = healthy[-needed]
    names = ", ".join(place.node for place in healthy[-needed:])
    return RuleFinding(
        rule="majority", allows=last.keeps_from, why=f"{names} hold, on disk, all that lies before this offset"
    )


def _transfers(facts: TrimFacts, places: Sequence[MemberPlace]) -> RuleFinding:
    held = [(offset, place.node) for place in places for offset in place.holds]
    if not held:
        return RuleFinding(rule="transfers", allows=facts.end, why="no transfer of a checkpoint is running")
    offset, node = min(held)
    return RuleFinding(
        rule="transfers", allows=offset, why=f"{node} sends a checkpoint whose receiver reads on from this offset"
    )


def _keep(facts: TrimFacts, wish: TrimWish) -> RuleFinding:
    if wish.keep_records:
        why = f"the last {wish.keep_records:,} of {facts.end - facts.first:,} records are kept"
        return RuleFinding(rule="keep", allows=max(facts.end - wish.keep_records, facts.first), why=why)
    why = f"records of the last {wish.keep_ms // 1000:,} s are kept" if wish.keep_ms else "nothing more is asked for"
    return RuleFinding(rule="keep", allows=facts.end, why=why)


def _agreement(facts: TrimFacts, wish: TrimWish, members: Sequence[str]) -> RuleFinding:
    audit = facts.audit
    diverged = [name for name in audit.diverged if name in members or not name] if isinstance(audit, AuditPlace) else []
    if wish.without_audit or not diverged:
        why = "not asked: without the audit" if wish.without_audit else "the audit names no member that has diverged"
        return RuleFinding(rule="agreement", allows=facts.end, why=why)
    why = f"the audit says that {', '.join(diverged)} diverged: repair first, or give --without-audit"
    return RuleFinding(rule="agreement", allows=NOTHING, why=why)


def _audit(facts: TrimFacts, wish: TrimWish, bases: Sequence[Base]) -> RuleFinding:
    audit = facts.audit
    if wish.without_audit:
        why = "not asked: an audit that has not read so far begins anew at the base"
        return RuleFinding(rule="audit", allows=facts.end, why=why)
    if isinstance(audit, str):
        return RuleFinding(rule="audit", allows=NOTHING, why=f"its verdicts cannot be read: {audit}")
    if audit is None:
        why = "no audit has judged this shard; one that starts later begins at the base"
        return RuleFinding(rule="audit", allows=facts.end, why=why)
    overdue = [base.offset for base in bases if facts.age_ms(base) >= AUDIT_SILENCE_MS]
    seconds = max(0, facts.now_ms - audit.decided_at_ms) // 1000
    if overdue and overdue[-1] > audit.offset:
        why = f"silent for {seconds:,} s, longer than it may hold the log: it begins anew at the base"
        return RuleFinding(rule="audit", allows=overdue[-1], why=why)
    judged = f"up to offset {audit.offset}" if audit.offset >= 0 else "no barrier equal"
    why = f"it has judged {judged}, {seconds:,} s ago"
    return RuleFinding(rule="audit", allows=audit.offset + 1, why=why)


def _bases_of_majority(members: Sequence[str], places: Sequence[MemberPlace], wish: TrimWish) -> list[Base]:
    """Return, in order, the bases that a majority of the members has read and agrees with."""
    votes: dict[Base, int] = {}
    for place in places:
        if not place.flagged and place.node not in wish.leave_behind:
            for base in set(place.bases):
                votes[base] = votes.get(base, 0) + 1
    return sorted(base for base, count in votes.items() if count > len(members) // 2)


def _base_finding(
    facts: TrimFacts, wish: TrimWish, known: Sequence[Base], held: Sequence[Base], old: Sequence[Base],
    usable: Sequence[Base],
) -> RuleFinding:  # fmt: skip
    if usable:
        base = usable[-1]
        why = f"the log can begin at the base of index {base.index}"
        return RuleFinding(rule="base", allows=max(base.offset, facts.first), why=why)
    if not held and any(base.offset == facts.first for base in known):
        why = "the log begins at the newest base already"
    elif not held:
        why = "a majority of the members has read no base behind the log's beginning: the leader must log one"
    elif not old:
        why = f"the oldest base is younger than the {wish.keep_ms // 1000:,} s that are kept"
    else:
        why = f"the oldest base that could be used is at {old[0].offset}, behind what the other rules allow"
    return RuleFinding(rule="base", allows=facts.first, why=why)

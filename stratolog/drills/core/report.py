"""What a drill reports: steps with timings, findings, a verdict. Pure.

The verdict follows from what happened (:func:`verdict_of`)::

    passed          the drill went to its end, found something out, and every finding holds
    failed          a finding does not hold, or a step did not succeed after something had been touched
    could not run   the drill was refused before it touched anything, or could not bring about the fault that it shows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stratolog.cluster.core.findings import Finding

PASSED = "passed"
FAILED = "failed"
COULD_NOT_RUN = "could not run"


class CouldNotRun(Exception):
    """Something that the drill needs is missing; the message says what and, if possible, how to get it."""


class StepFailed(Exception):
    """What a step waited for did not happen: the drill ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillStep:
    """Something that the drill did: when (seconds after the drill's start), how long it took, and the outcome."""

    text: str
    at_s: float
    took_s: float
    found: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """One run of a drill.

    ``figures`` are measured numbers by name; ``touched`` and ``restored`` say what was done to the stack.
    """

    drill: str
    shard: int | None
    started_at: str
    took_s: float
    verdict: str
    reason: str
    steps: tuple[DrillStep, ...]
    findings: tuple[Finding, ...]
    figures: dict[str, float]
    touched: tuple[str, ...]
    restored: tuple[str, ...]

    @property
    def has_passed(self) -> bool:
        """Whether the verdict is that all holds."""
        return self.verdict == PASSED

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


def verdict_of(
    findings: Sequence[Finding], *, refused: str | None = None, failed: str | None = None
) -> tuple[str, str]:
    """Return verdict and reason: ``refused`` and ``failed`` say why the drill ended early, if it did.

    A finding that does not hold outweighs the rest, so an early end never hides it.
    """
    wrong = [finding for finding in findings if not finding.holds]
    if wrong:
        more = "" if failed is None else f"; {failed}"
        return FAILED, "; ".join(f"{finding.question}: no: {finding.seen}" for finding in wrong) + more
    if failed is not None:
        return FAILED, failed
    if refused is not None:
        return COULD_NOT_RUN, refused
    if not findings:
        return COULD_NOT_RUN, "the drill found nothing out"
    return PASSED, f"all {len(findings)} findings hold"

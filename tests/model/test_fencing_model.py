"""The fencing protocol's model: safe within its bounds, and able to see what each rule is there for."""

from __future__ import annotations

import pytest

from tests.model.check import MUTANTS, QUICK, RUNS, Mutant, Run, check_mutant, check_run, missing_tools

needs_spin = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "spin is there")


@needs_spin
@pytest.mark.parametrize("run", QUICK, ids=str)
def test_small_bounds_are_safe(run: Run) -> None:
    assert check_run(run).states > 100_000


@needs_spin
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.define)
def test_a_rule_that_is_switched_off_is_missed(mutant: Mutant) -> None:
    found = check_mutant(mutant).trace.splitlines()
    kept = mutant.trace.read_text().splitlines()
    # Another version of Spin may find another shortest way to it, but not a shorter one and not another end.
    assert found[-1] == kept[-1]
    assert len(found) == len(kept), f"write it anew: python3 tests/model/check.py --rewrite\n{found}"


@needs_spin
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_all_bounds_are_safe(run: Run) -> None:
    assert check_run(run).states > 100_000


def test_every_kept_trace_ends_in_a_property() -> None:
    assert {"NO_NONCE", "NO_CONTIGUITY"} <= {mutant.define for mutant in MUTANTS}
    for mutant in MUTANTS:
        assert mutant.trace.read_text().splitlines()[-1].startswith("FAILS I"), mutant.trace

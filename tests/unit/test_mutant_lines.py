"""Which tests a mutant's line is for, when tests are chosen by line."""

from __future__ import annotations

import pytest

from tests.mutation.lines import STAGES, LineMap, ModuleLines, in_stages

BASE = """\
LIMIT = 4
TWICE = (
    2
    * LIMIT
)
UNNAMED = 1


class Queue:
    room: int = 3

    @property
    def left(
        self, at: int = 7
    ) -> int:
        if (
            at > self.room
            or at < 0
        ):
            return min(
                at,
                1,
            )
        try:
            return self.ask(at)
        except OSError:
            return 0
        match at:
            case 1:
                return 2
"""
USER = """\
from base import TWICE, Queue


def whole():
    return TWICE + 1


def made():
    return Queue(room=2)
"""
RAN = {
    "tests/unit/pkg/test_b.py::test_left": {"pkg/base.py": [1, 2, 16, 19, 20]},
    "tests/unit/pkg/test_b.py::test_fails": {"pkg/base.py": [16, 24, 25, 26, 27]},
    "tests/unit/pkg/test_c.py::test_whole": {"pkg/user.py": [5]},
    "tests/unit/pkg/test_c.py::test_made": {"pkg/user.py": [9]},
    "tests/unit/pkg/test_user.py::test_made": {"pkg/user.py": [9]},
    "tests/unit/pkg/test_d.py::test_names": {},
}
TESTS = {"tests/unit/pkg/test_d.py": "from pkg.base import LIMIT\ndef test_names():\n    assert LIMIT == 4\n"}


def chosen(module: str, line: int) -> list[str]:
    line_map = LineMap({"pkg/base.py": BASE, "pkg/user.py": USER}, RAN, TESTS)
    return [test.removeprefix("tests/unit/pkg/test_") for test in line_map.tests_of(module, line)]


@pytest.mark.parametrize(("line", "lines"), [(1, "1"), (4, "2 3 4 5"), (14, "12 13 14 15"), (18, "16 17 18 19")])
def test_a_line_belongs_to_its_whole_statement_or_to_the_head_of_one(line: int, lines: str) -> None:
    assert " ".join(map(str, ModuleLines(BASE).statement(line).lines)) == lines


def test_a_line_in_a_function_is_for_the_tests_that_run_its_statement() -> None:
    assert chosen("pkg/base.py", 17) == ["b.py::test_fails", "b.py::test_left"]
    assert chosen("pkg/base.py", 21) == ["b.py::test_left"]
    assert chosen("pkg/base.py", 25) == ["b.py::test_fails"]


def test_a_line_that_no_test_runs_is_for_none() -> None:
    assert chosen("pkg/base.py", 29) == []


def test_what_runs_at_import_is_for_the_tests_of_what_names_it_and_not_for_the_first_that_imported_it() -> None:
    assert chosen("pkg/base.py", 3) == ["c.py::test_whole"]


def test_a_constant_is_also_for_those_of_constants_made_of_it_and_for_test_modules_that_name_it() -> None:
    assert sorted(chosen("pkg/base.py", 1)) == ["c.py::test_whole", "d.py::test_names"]


def test_a_field_is_for_those_that_read_or_give_it_and_the_head_of_a_function_for_those_that_run_it() -> None:
    assert sorted(chosen("pkg/base.py", 10)) == [
        "b.py::test_fails",
        "b.py::test_left",
        "c.py::test_made",
        "user.py::test_made",
    ]
    assert chosen("pkg/base.py", 14) == ["b.py::test_fails", "b.py::test_left"]


def test_tests_in_files_named_after_the_module_come_first_and_then_those_that_run_little() -> None:
    assert chosen("pkg/base.py", 16) == ["b.py::test_fails", "b.py::test_left"]
    ran = {**RAN, "tests/unit/pkg/test_z.py::test_little": {"pkg/base.py": [16]}}
    assert LineMap({"pkg/base.py": BASE}, ran, {}).tests_of("pkg/base.py", 16)[0].endswith("::test_little")
    assert chosen("pkg/user.py", 9) == ["user.py::test_made", "c.py::test_made"]


def test_what_runs_at_import_and_is_named_by_nobody_is_for_all_tests_of_its_module() -> None:
    assert chosen("pkg/base.py", 6) == ["b.py::test_fails", "b.py::test_left"]
    assert LineMap({"pkg/base.py": BASE}, {}, {}).tests_of("pkg/base.py", 6) == []


@pytest.mark.parametrize("count", [0, 1, STAGES[0], STAGES[0] + 1, STAGES[1], STAGES[1] + 1, 300])
def test_stages_are_the_same_tests_in_the_same_order(count: int) -> None:
    tests = [f"test_{number}" for number in range(count)]
    stages = in_stages(tests)
    assert [test for stage in stages for test in stage] == tests
    assert all(stages)
    assert [len(stage) for stage in stages[:-1]] == [STAGES[0], STAGES[1] - STAGES[0]][: max(0, len(stages) - 1)]

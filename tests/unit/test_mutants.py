"""The mutation run's own operators, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.mutants import (
    Source,
    call_dropped,
    handler_emptied,
    if_inverted,
    is_another,
    skipped_spans,
    within,
)

PLAIN = """
def work(x: int = 1) -> int:
    "é: a docstring"
    log.info("%d", 2)
    é = "é"; begin(x)
    answer = ask(x)
    if x > 3 or é:
        await_it()
    return 4 if answer else 5
"""


def texts(found) -> list[str]:
    return [mutant.text() for mutant in found]


def test_a_call_made_for_its_effect_is_dropped_and_a_log_message_is_not() -> None:
    found = list(call_dropped(Source(PLAIN)))
    assert [mutant.line for mutant in found] == [5, 8]
    assert texts(found) == [PLAIN.replace("begin(x)", "pass"), PLAIN.replace("await_it()", "pass")]


def test_an_awaited_call_is_dropped_whole() -> None:
    text = "async def f():\n    await g(\n        1,\n    )\n"
    assert texts(call_dropped(Source(text))) == ["async def f():\n    pass\n"]


def test_a_condition_is_inverted_as_a_whole() -> None:
    assert texts(if_inverted(Source(PLAIN))) == [
        PLAIN.replace("x > 3 or é", "(not (x > 3 or é))"),
        PLAIN.replace("if answer", "if (not (answer))"),
    ]
    assert texts(if_inverted(Source("[x for x in y if x]"))) == ["[x for x in y if (not (x))]"]
    assert texts(if_inverted(Source("while x:\n    pass"))) == ["while (not (x)):\n    pass"]


def test_what_is_for_type_checkers_is_left_alone() -> None:
    text = "if TYPE_CHECKING:\n    import a\n    b = 1\nc = 2\n"
    assert not list(if_inverted(Source(text)))
    assert [within((line, 4), skipped_spans(Source(text))) for line in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_handler_catches_nothing() -> None:
    text = "try:\n    f()\nexcept (a.B, C) as error:\n    pass\nexcept:\n    pass\n"
    assert texts(handler_emptied(Source(text))) == [text.replace("(a.B, C)", "()")]


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("def f(a: int | None = 1) -> int | None: ...", {"|": True, "1": False}),
        ("x: int | None = 1", {"|": True, "1": False}),
        ("WAIT_S = 1", {"1": True}),
        ("WAIT_MS: int = 1", {"1": True}),
        ("WAIT_BYTES = 1", {"1": False}),
        ("wait_ms = 1", {"1": False}),
        ("__all__ = ['a' * 1]", {"1": True}),
        ("log.info(1)", {"1": True}),
        ("self.log.info(1)", {"1": False}),
        ("'1'", {"1": True}),
        ("é = 'é' + 1", {"1": False}),
    ],
)
def test_what_says_nothing_of_the_code_is_skipped(text: str, skipped: dict[str, bool]) -> None:
    spans = skipped_spans(Source(text))
    assert {part: within((1, text.index(part)), spans) for part in skipped} == skipped


def test_the_decorators_of_a_class_are_skipped() -> None:
    spans = skipped_spans(Source("@dataclass(slots=True)\nclass A:\n    b: int = 1\n\n@cache(1)\ndef f(): ...\n"))
    assert [within(position, spans) for position in ((1, 18), (3, 13), (5, 7))] == [True, False, False]


def test_a_mutant_is_python_and_means_something_else() -> None:
    assert is_another("x = 2", "x = 1")
    assert not is_another("x  =  1", "x = 1")
    assert not is_another("continue", "x = 1")


def test_all_mutants_parse() -> None:
    source = Source(PLAIN)
    for operator in (call_dropped, if_inverted, handler_emptied):
        for mutant in operator(source):
            ast.parse(mutant.text())

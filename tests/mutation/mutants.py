"""The pure part of the mutation run: which lines are not worth a mutant, and three operators of our own.

Everything here works on source text through the standard library's ``ast``. Positions are (line, column in characters);
lines count from 1.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Position = tuple[int, int]

LOGGERS = frozenset({"log", "logger", "logging", "_log", "LOG"})
TIMES = ("_S", "_MS")


@dataclass(frozen=True)
class Mutant:
    """One change: by which operator, at which line, and what returns the whole new text of the module."""

    operator: str
    line: int
    text: Callable[[], str]


class Source:
    """A module's text and tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)

    def span(self, node: ast.AST) -> tuple[Position, Position]:
        """Return where ``node`` begins and ends."""
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return self._in_characters(start), self._in_characters(end)

    def _in_characters(self, position: Position) -> Position:
        """Turn ``ast``'s column, which counts bytes of UTF-8, into one that counts characters."""
        line, column = position
        return line, len(self._lines[line - 1].encode()[:column].decode())

    def changed(self, operator: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
        """Return the mutant with ``text`` in the place of ``node``."""
        start, end = (self._offset(position) for position in self.span(node))
        return Mutant(operator, node.lineno, lambda: self.text[:start] + text + self.text[end:])

    def _offset(self, position: Position) -> int:
        line, column = position
        return sum(map(len, self._lines[: line - 1])) + column


def call_dropped(source: Source) -> Iterator[Mutant]:
    """Yield a mutant for each call that is made for its effect alone: ``pass`` instead."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and is_call(node.value) and not is_logging(node):
            yield source.changed("call dropped", node, "pass")


def if_inverted(source: Source) -> Iterator[Mutant]:
    """Yield a mutant for each condition of an if, a while, a conditional expression or a comprehension."""
    skipped = set(type_checking_lines(source))
    for test in conditions(source.tree):
        if test.lineno not in skipped:
            text = ast.get_source_segment(source.text, test)
            yield source.changed("if inverted", test, f"(not ({text}))")


def handler_emptied(source: Source) -> Iterator[Mutant]:
    """Yield a mutant for each ``except`` clause that names what it catches: it catches nothing."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield source.changed("handler emptied", node.type, "()")


OWN_OPERATORS = (call_dropped, if_inverted, handler_emptied)


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield every condition in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def skipped_spans(source: Source) -> list[tuple[Position, Position]]:
    """Return the spans in which no mutant is made.

    They are annotations, docstrings, ``__all__``, decorators of classes (whether a record has slots, say), log messages,
    what is below ``if TYPE_CHECKING``, and constants of a module that are times (``…_S``, ``…_MS``): how long something
    waits is a choice, and no test is timed.
    """
    spans = [((line, 0), (line + 1, 0)) for line in type_checking_lines(source)]
    for node in ast.walk(source.tree):
        spans.extend(source.span(part) for part in parts_without_mutants(node))
    return spans


def parts_without_mutants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node itself, or those of its parts, in which no mutant is made."""
    if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
        yield node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield node.returns
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or is_logging(node)):
        yield node
    if isinstance(node, ast.ClassDef):
        yield from node.decorator_list
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if any(name == "__all__" or (name.isupper() and name.endswith(TIMES)) for name in names):
            yield node


def type_checking_lines(source: Source) -> Iterator[int]:
    """Yield the numbers of all lines that are for type checkers alone."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def is_call(value: ast.expr) -> bool:
    """Return whether an expression is a call, awaited or not."""
    return isinstance(value.value if isinstance(value, ast.Await) else value, ast.Call)


def is_logging(statement: ast.Expr) -> bool:
    """Return whether a statement writes a log message: ``log.info(…)``."""
    call = statement.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in LOGGERS
    )


def within(position: Position, spans: list[tuple[Position, Position]]) -> bool:
    """Return whether a position lies in one of the spans, their ends excluded."""
    return any(start <= position < end for start, end in spans)


def is_another(mutated: str, original: str) -> bool:
    """Return whether a mutant's text is Python and means something else: a ``continue`` outside of a loop does not."""
    try:
        compile(mutated, "mutant", "exec")
    except SyntaxError:
        return False
    return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(original))

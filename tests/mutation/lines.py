"""The pure part of ``--by-line``: which tests run a line, and which tests a line is for that runs at import.

A line in a function is for the tests that run its statement. A line that runs at import (a constant, a default, a field)
runs under whichever test imports its module first, which says nothing. It is for the tests that run what names it, and
for the test modules that name it themselves; if nobody does, for all tests that run a function of its module. Lines count from 1; a module is its path from the repository's top.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

Function = ast.FunctionDef | ast.AsyncFunctionDef
STAGES = (8, 64)
"""After how many tests pytest begins anew: most mutants die by the first few, and collecting all takes longer."""


@dataclass(frozen=True)
class Statement:
    """A statement, or the head of one that has others in it: its lines, and for what runs at import what is named.

    ``body`` is what a head of a function is for: the tests that run one of these lines take its defaults.
    """

    lines: range
    at_import: bool = False
    names: frozenset[str] = frozenset()
    body: range = range(0)


def in_stages(tests: list[str]) -> list[list[str]]:
    """Return the tests in the same order, the first few apart from the others."""
    cuts = [0, *STAGES, max(len(tests), *STAGES)]
    return [tests[begin:end] for begin, end in pairwise(cuts) if tests[begin:end]]


class ModuleLines:
    """The statements of a module's text, and who names what."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self._statements: dict[int, Statement] = {}
        for statement in statements(tree, at_import=True):
            # What is inside of another comes later, and has its own lines.
            self._statements.update(dict.fromkeys(statement.lines, statement))
        self.in_functions = [line for line, statement in self._statements.items() if not statement.at_import]
        self._naming: dict[str, set[int]] = {}
        for line, name in names_used(tree):
            self._naming.setdefault(name, set()).add(line)

    def statement(self, line: int) -> Statement:
        """Return the statement of a line; a line without one (``case``) is a statement of its own."""
        return self._statements.get(line) or Statement(range(line, line + 1))

    def naming(self, names: Iterable[str]) -> set[int]:
        """Return the lines that use one of the names."""
        return {line for name in names for line in self._naming.get(name, ())}


class LineMap:
    """Which tests are for a line of a package."""

    def __init__(
        self, texts: Mapping[str, str], ran: Mapping[str, Mapping[str, Iterable[int]]], test_texts: Mapping[str, str]
    ) -> None:
        """``ran`` is the lines of each module that each test ran; ``texts`` and ``test_texts`` are by path."""
        self._modules = {module: ModuleLines(text) for module, text in texts.items()}
        self._tests_naming = {path: ModuleLines(text) for path, text in test_texts.items()}
        self._reach = {test: sum(len(list(lines)) for lines in modules.values()) for test, modules in ran.items()}
        self._by_line: dict[tuple[str, int], set[str]] = {}
        for test, modules in ran.items():
            for module, lines in modules.items():
                for line in lines:
                    self._by_line.setdefault((module, line), set()).add(test)

    def tests_of(self, module: str, line: int) -> list[str]:
        """Return the tests that a line is for; none if nothing runs it.

        Those in files named after its module come first, and those that run few lines.
        """
        statement = self._modules[module].statement(line)
        found = self._running(module, statement.body if statement.at_import else statement.lines)
        if statement.at_import:
            found = found | self._of_names(statement.names) or self._running(module, self._modules[module].in_functions)
        stem = module.rpartition("/")[2].removesuffix(".py")
        return sorted(found, key=lambda test: (stem not in test.partition("::")[0], self._reach[test], test))

    def _running(self, module: str, lines: Iterable[int]) -> set[str]:
        return {test for line in lines for test in self._by_line.get((module, line), ())}

    def _of_names(self, names: frozenset[str]) -> set[str]:
        """Return the tests of what uses names, also by way of other names that are made of them at import."""
        found: set[str] = set()
        seen, left = set(names), set(names)
        while left:
            now, left = left, set()
            for module, lines in self._modules.items():
                for line in lines.naming(now):
                    statement = lines.statement(line)
                    if statement.at_import:
                        found |= self._running(module, statement.body)
                        left |= statement.names - seen
                    else:
                        found |= self._running(module, statement.lines)
            seen |= left
        files = {path for path, lines in self._tests_naming.items() if lines.naming(names)}
        return found | {test for test in self._reach if test.partition("::")[0] in files}


def statements(node: ast.AST, *, at_import: bool) -> Iterator[Statement]:
    """Yield the statements below a node, each before those in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            yield statement_of(child, at_import=at_import)
        yield from statements(child, at_import=at_import and not isinstance(child, Function))


def statement_of(node: ast.stmt | ast.ExceptHandler, *, at_import: bool) -> Statement:
    """Return a simple statement whole, and of one with others in it the head."""
    first, last = first_line(node), node.end_lineno or node.lineno
    body: list[ast.stmt] = getattr(node, "body", [])
    if isinstance(node, ast.Match):
        lines = range(first, node.cases[0].pattern.lineno)
    else:
        lines = range(first, max(first_line(body[0]), first + 1) if body else last + 1)
    if not at_import:
        return Statement(lines)
    inner = range(first_line(body[0]), last + 1) if isinstance(node, Function) else range(0)
    return Statement(lines, at_import, frozenset(names_bound(node)), inner)


def first_line(node: ast.stmt | ast.ExceptHandler) -> int:
    """Return a statement's first line, that of its first decorator if it has any."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def names_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a class or an assignment binds. A function needs none: it has a body that tests run."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every use of a name: by itself, as an attribute, or as the word of an argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.end_lineno or node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.lineno, node.arg

"""Source text in which our packages lie at the top, rewritten for a place below ``stratolog``. Pure.

What is rewritten:

1. ``from schemas.log import x`` and ``import schemas.log as log`` get ``stratolog.`` before the name of the module.
2. ``import schemas`` becomes ``import stratolog.schemas as schemas``.
3. A string that is the full name of one of our modules, with a dot in it (``"producers.errors"``), gets ``stratolog.``
   too.
4. Examples in docstrings (``>>> from schemas.log import x``) follow rule 1.

All else stays as it is, to the byte; docstrings (but for rule 4) and comments are prose. Lines keep their numbers, so a
traceback of an installed node fits the repository.

Code that could name a module in another way is refused, with the file and the line (:class:`NotMovable`):

- ``import schemas.log`` without ``as``, which binds ``schemas``;
- a string that is the bare name of a package;
- a longer string that contains the name of a module, or a path into a package.

Such code asks ``__name__`` instead. Cython's source is not rewritten: its code may not name our packages.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

HOME = "stratolog"
"""The package below which everything lies in the wheel."""


class NotMovable(ValueError):
    """A source names a module in a way that cannot be rewritten; the message has the file, the line and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMover:
    """Rewrites the files of one source tree.

    ``packages`` are those that move, ``modules`` the dotted names of all modules in them.
    """

    packages: Collection[str]
    modules: Collection[str]

    def moved(self, source: str, path: str) -> str:
        """Return a Python source, or stub, as it is to be in the wheel. Raises NotMovable, naming ``path``."""
        text = _Text.of(source, path)
        nodes = list(ast.walk(text.tree))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and not node.level and self._moves(node.module or ""):
                text.insert(text.after_from(node), f"{HOME}.")
            elif isinstance(node, ast.Import):
                self._move_imports(node, text)
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if id(node) in docstrings:
                self._move_examples(node, node.value, text)
            else:
                self._move_string(node, node.value, text)
        result = text.result()
        self._check(source, result, path)
        return result

    def check_cython(self, source: str, path: str) -> None:
        """Raise NotMovable if Cython's source names one of the packages anywhere but in comments and strings."""
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME and token.string in self.packages:
                raise NotMovable(
                    f"{path}:{token.start[0]}: the code names {token.string}, and Cython's source is not rewritten"
                )

    def _moves(self, name: str) -> bool:
        return name.partition(".")[0] in self.packages

    def _move_imports(self, node: ast.Import, text: _Text) -> None:
        for alias in node.names:
            if not self._moves(alias.name):
                continue
            if "." in alias.name and alias.asname is None:
                parent, _, name = alias.name.rpartition(".")
                raise NotMovable(
                    f"{text.path}:{alias.lineno}: 'import {alias.name}' binds {parent.partition('.')[0]}:"
                    f" write 'from {parent} import {name}'"
                )
            start = text.position(alias.lineno, alias.col_offset)
            text.insert(start, f"{HOME}.")
            if alias.asname is None:
                text.insert((start[0], start[1] + len(alias.name)), f" as {alias.name}")

    def _move_string(self, node: ast.Constant, value: str, text: _Text) -> None:
        if value in self.packages:
            raise NotMovable(
                f"{text.path}:{node.lineno}: is {value!r} the package, or only a word? Name a module in it"
            )
        if value in self.modules:
            text.insert(text.inside_string(node, value), f"{HOME}.")
            return
        names = "|".join(map(re.escape, sorted(self.packages)))
        found = re.search(rf"(?<![\w.])({names})[./]\w|(\b(from|import)|-m)\s+({names})\b", value)
        if found:
            raise NotMovable(
                f"{text.path}:{node.lineno}: {value!r} holds the name of a module, or a path: it differs in the "
                "wheel; ask __name__"
            )

    def _move_examples(self, node: ast.Constant, value: str, text: _Text) -> None:
        """Rewrite the first line of each example that imports.

        Raises NotMovable if an example cannot be found in the source.
        """
        for example in doctest.DocTestParser().get_examples(value):
            try:
                moved = self.moved(example.source, f"{text.path}:{node.lineno} (example)")
            except NotMovable as error:
                if ": not Python" in str(error):
                    continue  # an error on purpose, or a fragment: it stays
                raise
            if moved != example.source:
                text.replace_line(node, example.source.splitlines()[0], moved.splitlines()[0])

    def _check(self, source: str, result: str, path: str) -> None:
        """Raise NotMovable if a rewritten text is not what it should be: a defect of this module, not to be shipped."""
        tree = ast.parse(result)
        left = [name for node in ast.walk(tree) for name in _imported(node) if self._moves(name)]
        if left or result.count("\n") != source.count("\n"):
            raise NotMovable(f"{path}: not rewritten as it ought to be: {', '.join(left) or 'its lines'}")


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """One source text, where its tokens are, and what is to be inserted.

    A position is a line, from 1, and a column in characters.
    """

    path: str
    tree: ast.AST
    lines: list[str]
    tokens: list[tokenize.TokenInfo]
    places: dict[tuple[int, int], int]
    insertions: list[tuple[tuple[int, int], str]] = field(default_factory=list)

    @classmethod
    def of(cls, source: str, path: str) -> _Text:
        """Parse a source; raises NotMovable if it is not Python."""
        try:
            tree = ast.parse(source)
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (SyntaxError, tokenize.TokenError) as error:
            raise NotMovable(f"{path}: not Python: {error}") from error
        places = {token.start: number for number, token in enumerate(tokens) if token.string}
        # StringIO ends lines where Python does; str.splitlines also ends them at other characters.
        return cls(path=path, tree=tree, lines=list(io.StringIO(source)), tokens=tokens, places=places)

    def position(self, line: int, offset_bytes: int) -> tuple[int, int]:
        """Return the position for a line and a column that the parser counts in bytes of UTF-8."""
        return line, len(self.lines[line - 1].encode()[:offset_bytes].decode())

    def after_from(self, node: ast.ImportFrom) -> tuple[int, int]:
        """Return where the module's name begins."""
        number = self.places[self.position(node.lineno, node.col_offset)]
        return next(token.start for token in self.tokens[number + 1 :] if token.type == tokenize.NAME)

    def inside_string(self, node: ast.Constant, value: str) -> tuple[int, int]:
        """Return where the text of a string begins, behind its quotes.

        Raises NotMovable if it is not written as one plain string.
        """
        number = self.places.get(self.position(node.lineno, node.col_offset), -1)
        token = self.tokens[number]
        if number < 0 or token.type != tokenize.STRING or token.string not in {f'"{value}"', f"'{value}'"}:
            raise NotMovable(f"{self.path}:{node.lineno}: write {value!r} as one plain string")
        return token.start[0], token.start[1] + 1

    def insert(self, position: tuple[int, int], text: str) -> None:
        self.insertions.append((position, text))

    def replace_line(self, node: ast.Constant, old: str, new: str) -> None:
        """Turn the line ``old`` of an example into ``new`` by insertions.

        Raises NotMovable if the docstring's source has no such line.
        """
        prefix = 0
        while old[prefix] == new[prefix]:
            prefix += 1
        added = new[prefix : len(new) - len(old) + prefix]
        found = [
            (line, self.lines[line - 1].index(f">>> {old}") + 4 + prefix)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if f">>> {old}" in self.lines[line - 1]
        ]
        if not found or old[:prefix] + added + old[prefix:] != new:
            raise NotMovable(f"{self.path}:{node.lineno}: cannot rewrite the example {old!r}")
        for position in found:
            if (position, added) not in self.insertions:
                self.insert(position, added)

    def result(self) -> str:
        """Return the text with all insertions."""
        lines = list(self.lines)
        for (line, column), text in sorted(self.insertions, reverse=True):
            lines[line - 1] = lines[line - 1][:column] + text + lines[line - 1][column:]
        return "".join(lines)


def module_names(paths: Collection[str]) -> Iterator[str]:
    """Give the dotted names of the modules and packages that source files hold; paths are relative, with '/'."""
    for path in paths:
        stem, _, suffix = path.rpartition(".")
        if suffix in {"py", "pyi", "pyx"}:
            yield stem.removesuffix("/__init__").replace("/", ".")

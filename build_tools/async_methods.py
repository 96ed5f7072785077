"""Writes the awaited methods of ``AsyncClient`` from those of ``Client``, in ``producers/client.py``.

``Client`` describes a method once: its name, its arguments, what it sends, how the answer is read, its docstring. Each
public method that ends in ``self.call(…)``, or returns what ``self.reads`` reads, is written. Its awaited twin has the
same signature and stands between two marks in ``producers/async_client.py``. All else in either class is written by
hand.

``python -m build_tools.async_methods`` writes them; a test says when that is due. All functions but ``main`` are pure.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "producers" / "client.py"
TARGET = ROOT / "producers" / "async_client.py"
BEGIN = "    # Written by build_tools.async_methods from Client's methods: change those, and run it.\n"
END = "    # Written by hand again.\n"
INDENT = " " * 8


class NoAwaitedForm(ValueError):
    """A method of ``Client`` looks like a request or a read, and is written in a way that is not known here."""


def generated(client: str) -> str:
    """Return the awaited methods, from the source of ``Client``; not formatted. Raises NoAwaitedForm."""
    lines = client.splitlines(keepends=True)
    return "\n".join(_awaited(method, lines) for method in _described(ast.parse(client)))


def updated(target: str, methods: str) -> str:
    """Return the source of ``AsyncClient`` with other methods between the marks; raises ValueError without marks."""
    before, begin, rest = target.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{TARGET.name} has lost a mark:\n{BEGIN}{END}")
    return f"{before}{BEGIN}\n{methods}\n{END}{after}"


def _described(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the methods of ``Client`` that send a request or read."""
    client = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Client")
    for node in client.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _is_operation(node):
            yield node


def _is_operation(method: ast.FunctionDef) -> bool:
    last = method.body[-1]
    if not isinstance(last, ast.Return | ast.Expr) or last.value is None:
        return False
    asked = {ast.unparse(node.func) for node in ast.walk(last.value) if isinstance(node, ast.Call)}
    reads = isinstance(last, ast.Return) and ast.unparse(last.value).startswith("self.reads.")
    return "self.call" in asked or reads


def _awaited(method: ast.FunctionDef, lines: list[str]) -> str:
    first = method.body[0]
    assert ast.get_docstring(method), method.name  # noqa: S101 - ruff wants one of every public method
    assert first.end_lineno is not None  # noqa: S101 - parsed from text
    assert method.end_lineno is not None  # noqa: S101
    signature = "".join(lines[method.lineno - 1 : first.lineno - 1])
    body = "".join(lines[first.end_lineno : method.end_lineno])
    link = f":meth:`producers.Client.{method.name}`"
    if "self.call(" in body:
        return _asynchronous(signature, link, body.replace("self.call(", "await self.call("))
    listing = re.fullmatch(r"\s*return (self\.reads\.\w+\(.*\))\.entries\(\)\s*", body, re.DOTALL)
    if listing:
        signature = signature.replace("-> Iterator[", "-> AsyncIterator[")
        return f'{signature}{INDENT}"""As {link}, by ``async for``."""\n{INDENT}return self._entries({listing[1]})\n'
    read = re.fullmatch(r"\s*return (self\.reads\.\w+)\((.*)\)\s*", body, re.DOTALL)
    if read:
        return _asynchronous(signature, link, f"{INDENT}return await self._in_thread({read[1]}, {read[2]})\n")
    raise NoAwaitedForm(f"{method.name} is written in a way that {__name__} does not know:\n{body}")


def _asynchronous(signature: str, link: str, body: str) -> str:
    return f'{signature.replace("def ", "async def ", 1)}{INDENT}"""As {link}."""\n{body}'


def formatted(source: str) -> str:
    """Return source text as ruff formats it here."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def current() -> str:
    """Return what the source of ``AsyncClient`` should be."""
    return formatted(updated(TARGET.read_text(encoding="utf-8"), generated(SOURCE.read_text(encoding="utf-8"))))


def main() -> None:
    """Write the awaited methods."""
    TARGET.write_text(current(), encoding="utf-8")


if __name__ == "__main__":
    main()

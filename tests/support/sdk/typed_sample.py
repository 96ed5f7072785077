"""A program for mypy: what it must find in it, if and only if it sees the SDK's types."""

import re

SAMPLE = """from stratolog import AsyncClient, Client, NotFound, RequestFailed
from stratolog import Cleint


def show(client: Client, awaited: AsyncClient) -> None:
    reveal_type(client.key_info("v", "b", "k").info.size)
    reveal_type(next(client.list_buckets("v", limit=1)).usage)
    reveal_type(client.open("/v/b/k"))
    reveal_type(client.open("/v/b/k", "wb"))
    reveal_type(awaited.list_keys("v", "b"))
    client.create_volume(1)
    failed: type[RequestFailed] = NotFound
"""

FINDINGS = [
    'error: Module "stratolog" has no attribute "Cleint"; maybe "Client"?  [attr-defined]',
    'note: Revealed type is "int"',
    'note: Revealed type is "Mapping[str, int]"',
    'note: Revealed type is "KeyInput"',
    'note: Revealed type is "KeyOutput"',
    'note: Revealed type is "AsyncIterator[KeyInfo]"',
    'error: Argument 1 to "create_volume" of "Client" has incompatible type "int"; expected "str"  [arg-type]',
]


def found_in_sample(output: str) -> list[str]:
    """Return mypy's findings in sample.py, types without their modules."""
    found = [line.split(": ", 1)[1] for line in output.splitlines() if line.startswith("sample.py")]
    return [re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", line) for line in found]

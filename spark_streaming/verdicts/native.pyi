from collections.abc import Callable, Sequence
from typing import Any

def hash_of(data: bytes, seed: int) -> int: ...

class BatchScanner:
    def __init__(
        self,
        families: Sequence[str],
        retry_table: str,
        response_header: bytes,
        status_of: Callable[[bytes], str],
        longest_ms: int,
        seed: int,
    ) -> None: ...
    def scan(self, value: bytes, position: int, appended_ms: int) -> tuple[Any, ...] | None: ...

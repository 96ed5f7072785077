from collections.abc import Sequence
from typing import Any

def make_in_c(cls: type, fields: Sequence[Any], positional: int) -> None: ...

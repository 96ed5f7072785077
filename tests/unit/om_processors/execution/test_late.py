"""What a node executes of a log whose requests it validates itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution.late import OMExecutor
from replicated_db.core.errors import BrokenLog
from schemas.codecs.codec import encode
from schemas.records.messages import PreparedRequest
from tests.support.om.dict_transaction import DictTables, DictTransaction


def prepared(request: bytes) -> bytes:
    return encode(PreparedRequest(request=request, object_id=0, session_id=0, blocks=[], status="OK", message=""))


@pytest.mark.parametrize("logged", [b"", b"nonsense", prepared(b""), prepared(b"nonsense"), prepared(prepared(b""))])
def test_a_logged_request_that_cannot_be_read_breaks_the_log(logged: bytes):
    """No replica can go on: another one may have read it."""
    contexts: Any = SimpleNamespace(shard=0)
    executor = OMExecutor(contexts)
    with pytest.raises(BrokenLog, match="^a logged request: "):
        executor.execute(logged, DictTransaction(DictTables(), 1), 0)  # type: ignore[arg-type]

"""What a shard's feature level allows. Pure."""

from __future__ import annotations

from om_processors.errors import OMError
from schemas.result_codes import NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION


def require_level(level: int, needed: int, what: str) -> None:
    """Raise OMError (NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION) if ``what`` needs a later level than the shard's."""
    if level < needed:
        message = f"{what} needs feature level {needed}, the shard is at {level}: 'stratolog admin finalize' raises it"
        raise OMError(NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION, message)

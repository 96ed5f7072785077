"""Operators' commands. They act on the log rather than on tables, so the leader's shell carries them out itself.

Execution refuses a command that reaches it. The handler exists so that every request type has one.
"""

from __future__ import annotations

from typing import NoReturn

from om_processors.errors import OMError
from om_processors.namespace.context import AnyHandler, RequestHandler
from schemas.records.messages import SHARD_COMMANDS, ShardCommand
from schemas.result_codes import NOT_SUPPORTED_OPERATION


def _refuse(body: ShardCommand, *_: object) -> NoReturn:
    raise OMError(NOT_SUPPORTED_OPERATION, f"{type(body).__name__} of shard {body.shard} is no request on tables")


HANDLERS: tuple[AnyHandler, ...] = tuple(
    RequestHandler(body=command, check=_refuse, apply=_refuse) for command in SHARD_COMMANDS
)

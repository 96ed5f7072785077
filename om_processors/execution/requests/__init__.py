"""The request types. One module per kind of object; a module exports its ``HANDLERS``.

To add a request type: define its body in ``schemas/records/messages.py`` and in a new version of ``Request``'s schema,
write a module here with a :class:`~om_processors.namespace.context.RequestHandler` for it, and name the module in
``_MODULES``. No other place lists the types.

Rules for handlers: pure; time, ids and blocks only from the ``RequestPreparation``; refuse by OMError before the first
write (the transaction would be dropped anyway, but a reader should not need to know that).
"""

from __future__ import annotations

from collections.abc import Mapping

from om_processors.execution.requests import (
    acl,
    bucket,
    fleet,
    identity,
    key,
    operator,
    properties,
    put_key,
    reservations,
    snapshot,
    volume,
)
from om_processors.namespace.context import AnyHandler
from schemas.records.messages import BATCH_BEGINNERS

_MODULES = (volume, bucket, key, put_key, reservations, operator, fleet, snapshot, identity, acl, properties)


def _table() -> dict[type, AnyHandler]:
    handlers: dict[type, AnyHandler] = {}
    for module in _MODULES:
        for handler in module.HANDLERS:
            if handler.body in handlers:
                raise ValueError(f"two handlers for {handler.body.__name__}")
            handlers[handler.body] = handler
    return handlers


HANDLERS: Mapping[type, AnyHandler] = _table()
"""The handler of each request type, by the class of its body."""

LATE_REQUEST_TYPES = tuple(body.__name__ for body in HANDLERS if body not in BATCH_BEGINNERS)
"""Request types that may be validated late: all except operators' commands, which act on the log, and CreateSnapshot,
whose checkpoint needs a batch of the leader's.
"""

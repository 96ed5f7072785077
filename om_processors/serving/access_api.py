"""The pages of a node's HTTP API about access: lists of objects, users, delegation tokens (decisions 0071 and 0072).

``GET /v1/acl?kind=K&volume=V[&bucket=B][&name=N]``   the list of an object, and its owner
``GET /v1/users``                                     all users; for members and administrators
``GET /v1/tokens[?owner=U]``                          the delegation tokens of the caller, or of another user

All take ``consistency`` as other reads do. Nothing here has a secret: nodes keep none of users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import faust
from faust.web import View

from om_processors.errors import OMError
from om_processors.execution.requests.acl import check_acl_place
from om_processors.identity.readers import question_of, reader_in
from om_processors.namespace import prefixes, tables, users
from om_processors.namespace.access import AclPlace, Caller, require_on_acl
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import check_text, shown
from om_processors.serving.consistency import LINEARIZABLE, SESSION, STALE, Consistency, parse_session
from om_processors.serving.http_api import Answer, answered
from om_processors.serving.views import Json
from replicated_db.core.applying.replica import Replica
from schemas.access.acl import BUCKET, KEY, READ_ACL, VOLUME, acl_text
from schemas.column_families import BUCKET_TABLE, IDENTITY_TABLE, KEY_TABLE, PREFIX_TABLE, VOLUME_TABLE
from schemas.records.identity import TokenRow, UserRow
from schemas.records.rows import Acl
from schemas.result_codes import INVALID_REQUEST, KEY_NOT_FOUND, PERMISSION_DENIED
from schemas.sharding import SYSTEM_SHARD, shard_of

READ_FAMILIES = (VOLUME_TABLE, BUCKET_TABLE, KEY_TABLE, PREFIX_TABLE, IDENTITY_TABLE)


class AccessApi:
    """Handlers; :meth:`attach` gives them their paths."""

    def __init__(self, replicas: Mapping[int, Replica], consistency: Consistency) -> None:
        self._replicas = replicas
        self._consistency = consistency

    def attach(self, app: faust.App) -> None:
        """Register all pages."""
        for path, handler in {"/v1/acl": self.acl, "/v1/users": self.users, "/v1/tokens": self.tokens}.items():
            self._page(app, path, handler)

    def _page(self, app: faust.App, path: str, handler: Any) -> None:
        @app.page(path, name=f"access{path}")
        async def page(view: View, request: Any) -> Any:
            status, body = await answered(partial(handler, question_of(request)))
            return view.json(body, status=status)

    async def acl(self, query: Mapping[str, str]) -> Answer:
        """Return the list of an object; raises OMError."""
        place = AclPlace(
            kind=query.get("kind", ""), volume=query.get("volume", ""), bucket=query.get("bucket", ""),
            name=query.get("name", ""),
        )  # fmt: skip
        check_acl_place(place.kind, place.volume, place.bucket, place.name)
        shard = shard_of(place.volume, len(self._replicas))
        return await self._read(shard, query, partial(acl_json, place=place, reader=reader_in(query)))

    async def users(self, query: Mapping[str, str]) -> Answer:
        """Return all users, by name."""
        return await self._read(
            SYSTEM_SHARD, query, lambda view: {"users": [_user_json(row) for row in users.users(view)]}
        )

    async def tokens(self, query: Mapping[str, str]) -> Answer:
        """Return a user's delegation tokens, oldest first; raises OMError PERMISSION_DENIED for another user's."""
        reader = reader_in(query)
        owner = query.get("owner", "" if reader is None else reader.user)
        check_text("owner", owner)
        if reader is not None and not reader.administrator and owner != reader.user:
            raise OMError(PERMISSION_DENIED, f"user {reader.user}: the tokens of {shown(owner)} are not yours")
        return await self._read(
            SYSTEM_SHARD, query, lambda view: {"tokens": [_token_json(row) for row in users.tokens_of(view, owner)]}
        )

    async def _read(self, shard: int, query: Mapping[str, str], ask: Callable[[ReadView], Json]) -> Answer:
        consistency = query.get("consistency", LINEARIZABLE)
        if consistency not in (LINEARIZABLE, SESSION, STALE):
            raise OMError(INVALID_REQUEST, f"consistency {consistency!r} is not linearizable, session or stale")
        await self._consistency.ready(shard, consistency, parse_session(query.get("session", "")))
        index, rows = self._replicas[shard].moment(READ_FAMILIES)
        try:
            self._consistency.refuse_flagged(shard)
            return 200, {**ask(rows), "positions": {str(shard): index}}
        finally:
            rows.close()


def acl_json(view: ReadView, place: AclPlace, reader: Caller | None) -> Json:
    """Return an object's list and owner; a prefix without a list has an empty one, and prefixes have no owner."""
    if reader is not None:
        require_on_acl(view, reader, place, READ_ACL)
    owner, acls = _owner_and_acls(view, place)
    return {"owner": owner, "acls": [acl_text(acl) for acl in acls]}


def _owner_and_acls(view: ReadView, place: AclPlace) -> tuple[str, list[Acl]]:
    if place.kind == VOLUME:
        volume = tables.require_volume(view, place.volume)
        return volume.owner, volume.acls
    bucket = tables.require_bucket(view, place.volume, place.bucket)
    if place.kind == BUCKET:
        return bucket.owner, bucket.acls
    if place.kind == KEY:
        key = tables.get_key(view, tables.key_key(place.volume, place.bucket, place.name))
        if key is None:
            raise OMError(KEY_NOT_FOUND, f"no key /{place.volume}/{place.bucket}/{shown(place.name)}")
        return key.owner, key.acls
    prefix = prefixes.get_prefix(view, place.volume, place.bucket, place.name)
    return "", [] if prefix is None else prefix.acls


def _user_json(row: UserRow) -> Json:
    return {
        "user": row.user, "generation": row.generation, "administrator": row.administrator, "groups": list(row.groups),
        "previous_until_ms": row.previous_until_ms, "creation_time_ms": row.creation_time_ms,
        "modification_time_ms": row.modification_time_ms,
    }  # fmt: skip


def _token_json(row: TokenRow) -> Json:
    return {
        "owner": row.owner, "number": row.number, "renewer": row.renewer, "issue_time_ms": row.issue_time_ms,
        "max_time_ms": row.max_time_ms, "expiry_time_ms": row.expiry_time_ms,
    }  # fmt: skip

"""The pages of a node's HTTP API about datanodes and pipelines: rows of shard 0, joined with this node's heartbeats.

``GET /v1/pipelines``                 every pipeline and its members, closed ones included: their blocks are still read;
                                      and whether this node gives block tokens
``GET /v1/datanodes``                 every datanode: state, health, room, pipelines; and ``switched_off``, the names of
                                      decommissioned ones that are silent
``GET /v1/containers/{container}``    datanodes that hold a container: its pipeline's, or others that have copied it

All pages take ``consistency`` as other reads do. Without datanodes in the settings the lists are empty.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import faust
from faust.web import View

from om_processors.config import NodeConfig
from om_processors.errors import OMError
from om_processors.fleet.core import placement
from om_processors.fleet.core.fleet import Datanode, Picture
from om_processors.fleet.heartbeats import FleetView
from om_processors.identity.token_issuer import BlockTokenIssuer
from om_processors.namespace import tables
from om_processors.namespace.names import shown
from om_processors.serving.consistency import LINEARIZABLE, SESSION, STALE, Consistency, parse_session
from om_processors.serving.http_api import Answer, answered
from om_processors.serving.views import Json
from replicated_db.core.applying.replica import Replica
from schemas.codecs.decimals import decimal_of
from schemas.records.datanode import Member, PipelineRow
from schemas.result_codes import INVALID_REQUEST
from schemas.sharding import SYSTEM_SHARD

MAX_CONTAINER_ID = (1 << 63) - 1
MAX_FAULTS = 20
"""Most faults that are named of one datanode."""


class FleetApi:
    """Handlers; :meth:`attach` gives them their paths."""

    def __init__(
        self, config: NodeConfig, replica: Replica, consistency: Consistency, fleet: FleetView | None,
        block_tokens: BlockTokenIssuer | None = None,
    ) -> None:  # fmt: skip
        self._block_tokens = block_tokens
        self._config = config
        self._replica = replica
        self._consistency = consistency
        self._fleet = fleet

    def attach(self, app: faust.App) -> None:
        """Register all pages."""
        pages = {
            "/v1/pipelines": self.pipelines,
            "/v1/datanodes": self.datanodes,
            "/v1/containers/{container}": self.container,
        }
        for path, handler in pages.items():
            self._page(app, path, handler)

    def _page(self, app: faust.App, path: str, handler: Any) -> None:
        @app.page(path, name=f"fleet{path}")
        async def page(view: View, request: Any, **parts: str) -> Any:
            status, body = await answered(partial(handler, request.query, **parts))
            return view.json(body, status=status)

    async def _rows(self, query: Any) -> tuple[list[PipelineRow], dict[str, int]]:
        consistency = query.get("consistency", LINEARIZABLE)
        if consistency not in (LINEARIZABLE, SESSION, STALE):
            raise OMError(INVALID_REQUEST, f"consistency {consistency!r} is not linearizable, session or stale")
        await self._consistency.ready(SYSTEM_SHARD, consistency, parse_session(query.get("session", "")))
        position, _, snapshot = self._replica.snapshot()
        try:
            self._consistency.refuse_flagged(SYSTEM_SHARD)
            return tables.pipelines(snapshot), {str(SYSTEM_SHARD): position.index}
        finally:
            snapshot.close()

    async def pipelines(self, query: Any) -> Answer:
        """List the pipelines, by partition."""
        rows, positions = await self._rows(query)
        picture = None if self._fleet is None else self._fleet.picture
        issues = self._block_tokens is not None and self._block_tokens.key() is not None
        return 200, {
            "pipelines": [pipeline_json(row, picture) for row in rows], "block_tokens": issues, "positions": positions,
        }  # fmt: skip

    async def datanodes(self, query: Any) -> Answer:
        """List the datanodes by name."""
        _, positions = await self._rows(query)
        if self._fleet is None:
            return 200, {"datanodes": [], "switched_off": [], "positions": positions}
        picture = self._fleet.refresh()
        names = sorted({*picture.datanodes, *self._config.datanodes} - picture.switched_off.keys())
        found = [datanode_json(picture.member(name), picture) for name in names]
        return 200, {"datanodes": found, "switched_off": sorted(picture.switched_off), "positions": positions}

    async def container(self, query: Any, container: str) -> Answer:  # noqa: ARG002 - every page takes the query
        """Return the datanodes that hold a container, as their heartbeats say."""
        number = decimal_of(container, MAX_CONTAINER_ID)
        if number is None:
            raise OMError(INVALID_REQUEST, f"container {shown(container)} is not a number in 0..{MAX_CONTAINER_ID}")
        picture = None if self._fleet is None else self._fleet.picture
        found = None if picture is None else picture.containers.get(number)
        if picture is None or found is None:
            return 404, {"error": "CONTAINER_NOT_FOUND", "message": f"no living datanode reports container {number}"}
        replicas = [
            {
                **_addresses(picture.member(name)),
                "closed": name in found.closed_by,
                "healthy": name in found.healthy_on,
            }
            for name in sorted(found.held_by)
        ]
        return 200, {
            "container": number, "partition": found.partition, "used_bytes": found.used_bytes, "replicas": replicas,
        }  # fmt: skip


def pipeline_json(row: PipelineRow, picture: Picture | None) -> Json:
    """Return a pipeline as JSON; ``usable`` says whether this node believes that it takes blocks."""
    return {
        "pipeline": row.pipeline,
        "partition": row.partition,
        "generation": row.generation,
        "state": row.state,
        "usable": picture is not None and placement.is_usable(picture, row),
        "leader": None if picture is None else placement.leader(picture, row),
        "opened_at_ms": row.opened_at_ms,
        "members": [_member_json(one if picture is None else picture.found_at(one)) for one in row.members],
    }


def _member_json(member: Member) -> Json:
    """Return a member at its present addresses, not those at which the pipeline was opened."""
    return {
        "datanode": member.datanode, "address": member.address, "http_address": member.http_address,
        "rack": member.rack,
    }  # fmt: skip


def datanode_json(node: Datanode, picture: Picture) -> Json:
    """Return a datanode as JSON."""
    said = node.heartbeat
    return {
        **_addresses(node),
        "state": node.state,
        "health": node.health.value,
        "silent_ms": node.silent_ms if said is not None else None,
        "capacity_bytes": 0 if said is None else said.capacity_bytes,
        "free_bytes": 0 if said is None else said.free_bytes,
        "active_streams": 0 if said is None else said.active_streams,
        "containers": len(node.containers),
        "pipelines": [] if said is None else sorted(report.partition for report in said.pipelines),
        "open_pipelines": picture.pipelines_of(node.name),
        "faults": faults_of(node),
    }


def faults_of(node: Datanode) -> list[str]:
    """Return the faults that a datanode reports, of its pipelines and of its copies: MAX_FAULTS of them."""
    pipelines = [] if node.heartbeat is None else node.heartbeat.pipelines
    followed = {one.partition for one in pipelines}
    reports = node.containers.items()
    damaged = sorted(number for number, one in reports if not one.healthy and one.partition not in followed)
    copies = [f"the copy of container {number} is damaged" for number in damaged[:MAX_FAULTS]]
    return [*(one.fault for one in pipelines if not one.healthy), *copies]


def _addresses(node: Datanode) -> Json:
    said = node.heartbeat
    return {
        "datanode": node.name,
        "address": "" if said is None else said.address,
        "http_address": "" if said is None else said.http_address,
        "rack": node.rack,
    }

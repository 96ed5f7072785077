"""The HTTP answers of a node with real checkpoints (``om/snapshot_node``), on a real socket of the loopback."""

import json
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.om.snapshot_node import SnapshotNode
from tests.support.sdk.memory import MemoryCluster
from tests.support.sdk.nodes import Node


class SnapshotServer(Node):
    """Serves buckets of ``vol1`` from a :class:`SnapshotNode`, for reads of consistency ``stale``."""

    def __init__(self, served: SnapshotNode):
        self.served = served
        super().__init__(MemoryCluster())

    def respond(self, target):
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        _, _, _, _, bucket, page, *snapshot = [unquote(part) for part in url.path.split("/")[1:]]
        if snapshot:
            page, query["snapshot"] = "snapshot", snapshot[0]
        status, body = self.served.get(page, bucket=bucket, **query)
        return status, json.dumps(body).encode()

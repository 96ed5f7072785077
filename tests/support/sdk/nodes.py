"""OM nodes' HTTP API over rows in memory, on real sockets of the loopback, for the tests of the reads."""

import json
import threading
from base64 import b64encode
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from om_processors.namespace import tables
from schemas.kafka.brokers_id import brokers_header
from schemas.records.rows import KeyInfo
from tests.support.sdk.memory import MemoryCluster


class Node:
    """One node; ``error`` (status, code) makes it answer every request with that."""

    def __init__(self, cluster: MemoryCluster):
        self.cluster = cluster
        self.error: tuple[int, str] | None = None
        self.raw: bytes | None = None
        self.queries: list[tuple[str, dict[str, str]]] = []
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                status, body = node.respond(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for header in brokers_header(node.cluster.brokers_id).items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def respond(self, target):
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, strict_parsing=bool(url.query)).items()}
        self.queries.append((url.path, query))
        if self.raw is not None:
            return 200, self.raw
        if url.path == "/health":
            return 200, b"{}"
        if self.error is not None:
            status, code = self.error
            return status, json.dumps({"error": code, "message": f"{code} it is"}).encode()
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        assert parts[:2] == ["v1", "volumes"]
        answer = self.read(parts[2:], query)
        if answer is None:
            return 404, json.dumps({"error": "KEY_NOT_FOUND", "message": f"{url.path} is not there"}).encode()
        return 200, json.dumps(answer | {"positions": {"0": 5, "1": 7}}).encode()

    def read(self, parts, query):
        match parts:
            case []:
                return page(self.cluster.volumes, query)
            case [volume]:
                return info(self.cluster.volumes.get(volume))
            case [volume, "buckets"]:
                return page({b: row for (v, b), row in self.cluster.buckets.items() if v == volume}, query)
            case [volume, "buckets", bucket]:
                return info(self.cluster.buckets.get((volume, bucket)))
            case [volume, "buckets", bucket, "keys"]:
                rows = {k: row for (v, b, k), row in self.cluster.keys.items() if (v, b) == (volume, bucket)}
                return page(rows, query)
            case [volume, "buckets", bucket, "key"]:
                found = info(row := self.cluster.keys.get((volume, bucket, query["name"])))
                return found if query.get("bytes") != "true" or found is None else found | {"data": self.bytes_of(row)}

    def bytes_of(self, row):
        """Return an inline key's bytes in base64, None for another key."""
        data = tables.get_inline(self.cluster.tables, row)
        return None if data is None else b64encode(data).decode()


def info(row):
    return None if row is None else asdict(row) | {"usage": {"used_namespace": 3}, "field_of_a_newer_node": 1}


def page(rows, query):
    assert 1 <= int(query.get("limit", 100)) <= 1000
    names = sorted(n for n in rows if n.startswith(query.get("prefix", "")) and n > query.get("start_after", ""))
    shown = names[: int(query.get("limit", 100))]
    return {"entries": [listed(rows[name]) for name in shown], "truncated": len(shown) < len(names)}


def listed(row):
    """Return a row as a listing shows it: keys without usage."""
    return asdict(row) if isinstance(row, KeyInfo) else info(row)

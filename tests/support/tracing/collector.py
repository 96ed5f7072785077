"""A collector: an HTTP server that takes OTLP, as OpenTelemetry's exporters send it, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A span, and the process that it comes from. Ids are in hexadecimal digits; ``above`` is empty if there is none."""

    trace: str
    span: str
    above: str
    name: str
    service: str
    instance: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """Listens on a free port of the loopback until it is closed. ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[Collected] = []
        self.posts = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.posts += 1
                if collector.status == 200:
                    collector.take(self.path, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            process = {one.key: one.value.string_value for one in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.append(
                    Collected(
                        trace=span.trace_id.hex(), span=span.span_id.hex(), above=span.parent_span_id.hex(),
                        name=span.name, service=process["service.name"],
                        instance=process.get("service.instance.id", ""), begin_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        attributes={
                            one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes
                        },
                        failed=span.status.code == 2,
                    )
                )  # fmt: skip

    def below(self, span: Collected, name: str) -> list[Collected]:
        return [one for one in list(self.spans) if one.above == span.span and one.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

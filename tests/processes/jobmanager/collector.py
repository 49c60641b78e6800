"""A collector on loopback: takes spans by OTLP over HTTP and decodes them with OpenTelemetry's own messages."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


def _value(value):
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """Runs until it is closed; `spans` are those it has taken."""

    def __init__(self):
        self.spans, self.paths, self.status = [], [], 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                if collector.status == 200:
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, request):
        for resource in request.resource_spans:
            service = {a.key: _value(a.value) for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    SimpleNamespace(
                        name=s.name,
                        trace=s.trace_id.hex(),
                        id=s.span_id.hex(),
                        parent=s.parent_span_id.hex(),
                        start=s.start_time_unix_nano,
                        end=s.end_time_unix_nano,
                        attributes={a.key: _value(a.value) for a in s.attributes},
                        failed=s.status.code == 2,
                        message=s.status.message,
                        service=service["service.name"],
                    )
                    for s in scope.spans
                ]

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def below(self, span):
        return [other for other in self.spans if other.parent == span.id and other.trace == span.trace]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

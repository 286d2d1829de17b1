"""A collector that receives spans and metrics over OTLP and parses them."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """``with Collector() as collector``: an OTLP receiver on loopback that keeps all requests."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        """The ``ResourceMetrics`` of each request, oldest first."""
        self._came = threading.Condition()
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                keep(self.path, self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, trace_id: str, count: int, *, seconds: float = 150) -> None:
        """Wait until ``count`` spans of a trace have arrived.

        Raises:
            TimeoutError: Fewer spans arrived in time.
        """
        self._wait(
            lambda: sum(span.trace_id.hex() == trace_id for span in self.spans) >= count, seconds
        )

    def wait_for_all(self, count: int, *, seconds: float = 150) -> None:
        """Wait until ``count`` spans have arrived; raises like :meth:`wait_for`."""
        self._wait(lambda: len(self.spans) >= count, seconds)

    def wait_for_metrics(self, enough: Callable[[Any], bool], *, seconds: float = 150) -> Any:
        """Return the last metrics once they suffice; raises like :meth:`wait_for`."""
        self._wait(lambda: bool(self.metrics) and enough(self.metrics[-1]), seconds)
        return self.metrics[-1]

    def _wait(self, enough: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._came:
            while not enough():
                if not self._came.wait(until - time.monotonic()):
                    raise TimeoutError(f"{len(self.spans)} spans, {len(self.metrics)} metrics came")

    def _keep(self, path: str, body: bytes) -> None:
        with self._came:
            if path == "/v1/metrics":
                self.metrics.extend(ExportMetricsServiceRequest.FromString(body).resource_metrics)
            else:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        self.spans.extend(scope.spans)
            self._came.notify_all()

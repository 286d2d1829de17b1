"""Exports the spans of runs and requests to an OpenTelemetry collector, by OTLP over HTTP.

This module is imported only if a collector is configured. Spans wait in a bounded queue. If the
collector is slow or unavailable, spans that do not fit are dropped; no run waits for it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

from fastapi.telemetry import TelemetryConfig
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from caseworker.core.trace.snapshot import Snapshot
from caseworker.core.trace.spans import CLIENT, Span, TraceContext, context_of_run, spans_of
from caseworker.runs.run import Run

MAX_WAITING: Final = 16_384
"""Maximum number of spans in the queue; further spans are dropped."""

AT_ONCE: Final = 50
"""Maximum number of CallNodes that are converted to spans on the event loop. For larger graphs, a
thread is used."""

EXPORTED_ATTRIBUTES: Final = frozenset(
    {
        *("http.request.method", "http.route", "http.response.status_code", "error.type"),
        *("url.scheme", "network.protocol.version"),
    }
)
"""Attributes of a request that are exported. Path, query and host are left out, because the caller
chooses them."""

_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})


class SpanExport:
    """Exports the spans of runs, as a :class:`RunObserver`, and the spans of requests."""

    def __init__(self, resource: Mapping[str, str], endpoint: str | None = None) -> None:
        """Export to the URL ``endpoint``, to which ``/v1/traces`` is appended.

        If ``endpoint`` is None, the standard variables set it (``OTEL_EXPORTER_OTLP_ENDPOINT`` and
        so on). Headers, certificates, compression and timeouts always come from the standard
        variables.
        """
        url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
        self._resource = Resource.create(dict(resource))
        self._scope = InstrumentationScope("caseworker", resource["service.version"])
        self._processor = _Bare(OTLPSpanExporter(url), max_queue_size=MAX_WAITING)
        self._requests = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._requests.add_span_processor(self._processor)
        self._making: set[asyncio.Task[None]] = set()

    @property
    def of_requests(self) -> TelemetryConfig:
        """Configuration for the request tracing of the web framework."""
        return {
            "tracer_provider": self._requests,
            "metrics": False,
            "operation_spans": False,
            "exclude": lambda scope: scope.get("path") in _PROBES,
        }

    def accepted(self, run: Run) -> None:
        """Do nothing, because spans are exported when the run ends."""

    def started(self, run: Run) -> None:
        """Do nothing, because spans are exported when the run ends."""

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """Queue the spans of a run for export.

        Does nothing without a graph, or if the caller marked the trace as not sampled. The spans of
        more than ``AT_ONCE`` nodes are built in a thread.
        """
        context = context_of_run(run.key.tenant, run.key.run_id, run.request.traceparent)
        if graph is None or not context.sampled:
            return
        if len(graph["nodes"]) <= AT_ONCE:
            self._send(run, graph, context)
            return
        making = asyncio.to_thread(self._send, run, graph, context)
        self._making.add(task := asyncio.create_task(making, name="spans of a large run"))
        task.add_done_callback(self._making.discard)

    async def aclose(self) -> None:
        """Export the queued spans and close the connection."""
        if self._making:
            await asyncio.wait(self._making)
        await asyncio.to_thread(self._processor.shutdown)

    def _send(self, run: Run, graph: Mapping[str, Any], context: TraceContext) -> None:
        ref = run.request.definition_ref
        name = None if ref is None else ref.name
        chat = run.request.chat
        conversation = None if chat is None else chat.thread_id
        snapshot, tenant = cast("Snapshot", graph), run.key.tenant
        for span in spans_of(
            snapshot, context, tenant=tenant, name=name, conversation=conversation
        ):
            self._processor.send(self._readable(span, context))

    def _readable(self, span: Span, context: TraceContext) -> ReadableSpan:
        def place(span_id: str, *, remote: bool) -> SpanContext:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(int(context.trace_id, 16), int(span_id, 16), remote, flags)

        parent = span.parent_id
        return ReadableSpan(
            name=span.name,
            context=place(span.span_id, remote=False),
            parent=None if parent is None else place(parent, remote=parent == context.span_id),
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.CLIENT if span.kind == CLIENT else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=span.start_ms * 1_000_000,
            end_time=span.end_ms * 1_000_000,
            instrumentation_scope=self._scope,
        )


class _Bare(BatchSpanProcessor):
    """Exports request spans without the parts that callers chose."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a request span with only the attributes in ``SHOWN``."""
        about = {
            key: value
            for key, value in (span.attributes or {}).items()
            if key in EXPORTED_ATTRIBUTES
        }
        bare = ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=about,
            kind=span.kind,
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
        self.send(bare)

    def send(self, span: ReadableSpan) -> None:
        """Queue a span that is free of text from callers."""
        super().on_end(span)

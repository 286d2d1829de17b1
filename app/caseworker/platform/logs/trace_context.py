"""The current span (W3C Trace Context), kept in the standard API of OpenTelemetry.

If requests are traced, the framework has already made the request's span current. Otherwise the
request's ``traceparent`` header is made current. So a run finds its parent span in both cases.

Inside a run, the request's span is not current, because another process may execute the run. While
a step or call executes, its span is current if it is exported or propagated. Spans created by user
functions and tools become its children, and their HTTP requests can carry its ``traceparent``.
"""

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

HEADER = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """Return the ``traceparent`` header of the current span; None without a span."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def current_ids() -> dict[str, str]:
    """Return ``trace_id`` and ``span_id`` of the current span in hexadecimal.

    The result is empty without a current span.
    """
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


@contextmanager
def below_caller(traceparent: str) -> Iterator[None]:
    """Make the span in a ``traceparent`` header current during the block.

    If a span is current already, it stays current.
    """
    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = context.attach(_PROPAGATOR.extract({HEADER: traceparent}))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def within_span(trace_id: str, span_id: str, *, sampled: bool) -> Iterator[None]:
    """Make the span with these hexadecimal IDs current during the block."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    place = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(place), Context()))
    try:
        yield
    finally:
        context.detach(token)


def outside_spans() -> contextvars.Context:
    """Return a copy of the current context without a span, for tasks that outlive a request."""
    copied = contextvars.copy_context()
    copied.run(context.attach, Context())
    return copied

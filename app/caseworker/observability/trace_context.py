"""The place in a trace (W3C Trace Context), as the standard API of OpenTelemetry keeps it.

Where requests have spans, that of the request is current, and nothing is to be done. Elsewhere the
header of the request is made current, so that a run knows what it stands below either way.

Inside a run the span of its request is not current: the process that executes it need not be the
one that accepted it. While a run executes a step or makes a call, the span of the step or call is
current if others may know of it. So spans that functions and tools of users make are its children,
and whatever they call by HTTP is told of it.
"""

import contextvars
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

HEADER = "traceparent"
_HEADER = HEADER.encode()
_PROPAGATOR = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """Return the header that names the current span; None if there is none."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def current_ids() -> dict[str, str]:
    """Return ``trace_id`` and ``span_id`` of the current span in hexadecimal; {} without one."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


@contextmanager
def below_caller(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
    """Make the span current that the headers of a request name, unless another one is."""
    given = [value for name, value in headers if name == _HEADER]
    if len(given) != 1 or trace.get_current_span().get_span_context().is_valid:
        yield
        return
    carrier = {HEADER: given[0].decode("latin-1")}
    token = context.attach(_PROPAGATOR.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def within_span(trace_id: str, span_id: str, *, sampled: bool) -> Iterator[None]:
    """Make a span current by its ids, which are hexadecimal."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    place = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(place), Context()))
    try:
        yield
    finally:
        context.detach(token)


def outside_spans() -> contextvars.Context:
    """Return the current context for a task that is below no span, whatever has begun it."""
    copied = contextvars.copy_context()
    copied.run(context.attach, Context())
    return copied

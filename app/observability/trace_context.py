"""The caller's place in a trace (W3C Trace Context), as the standard API of OpenTelemetry keeps it.

Where requests have spans, that of the request is current, and nothing is to be done. Elsewhere the
header of the request is made current, so that a run knows what it stands below either way.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADER = b"traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """Return the header that names the current span; None if there is none."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


@contextmanager
def below_caller(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
    """Make the span current that the headers of a request name, unless another one is."""
    given = [value for name, value in headers if name == _HEADER]
    if len(given) != 1 or trace.get_current_span().get_span_context().is_valid:
        yield
        return
    carrier = {"traceparent": given[0].decode("latin-1")}
    token = context.attach(_PROPAGATOR.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)

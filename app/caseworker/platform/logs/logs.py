"""Structured log lines: JSON objects with ``ts``, ``level``, ``event`` and the IDs of the run."""

import logging
import sys
from functools import lru_cache
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from caseworker.platform.logs.errors import format_error
from caseworker.platform.logs.redaction import redact_text, redact_value
from caseworker.platform.logs.trace_context import current_ids
from caseworker.platform.printable import printable

LOG_FIELDS = frozenset(
    {
        *("ts", "level", "logger", "event", "exception", "stack"),
        *("run_id", "tenant", "request_id", "worker_id", "node_id", "step_id", "call_key"),
        *("trace_id", "span_id"),
        *("tier", "step_type", "tool", "args", "token_usage", "output_summary", "metric"),
        *("decision", "status", "attempt", "attempts", "count", "error", "error_class", "detail"),
        *("records", "dimension", "used", "limit"),
        *("loop", "method", "path", "seconds", "bytes", "account", "folders", "advice"),
        *("model", "provider", "fallback", "server", "agent", "turns", "terminate_reason"),
        *("queue", "schedule", "kind", "kinds", "cost_usd", "tokens", "route", "pid"),
    }
)
"""Names of the log fields whose values are logged. The values of other fields are replaced with a
placeholder."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "console"]

_VERBOSE = (
    *("aiohttp", "alembic", "anthropic", "httpcore", "httpx", "httpx2", "openai"),
    *("procrastinate", "sqlalchemy"),
)
"""Libraries that log prompts, rows, queue steps or imports; limited to warnings."""

_SILENT = ("mcp",)
"""Silenced libraries: their errors surface as errors of our calls, and they would log payloads."""

_NO_TRACEBACKS = ("procrastinate.utils",)
"""Loggers whose message already names the error; the traceback has only library frames."""

_OWN_HANDLERS = ("uvicorn", "uvicorn.access", "uvicorn.error")
"""Loggers that install their own handlers."""

_EXCEPTION_CHARS = 20_000
_NAME_CHARS = 60
_EVENT_CHARS = 60
"""Event names up to this length are cached: most are constants of the service."""

NOT_LISTED = "[not shown]"
"""Placeholder for the value of a field that is not on the allowlist."""


def configure_logging(
    *, level: LogLevel = "info", form: LogFormat = "json", stream: TextIO | None = None
) -> None:
    """Configure all logging of the process, including that of libraries, in one format.

    ``stream`` defaults to standard error. Lines of the service and of libraries have the same
    format, include structlog's context variables and are redacted. Lines of the service bypass the
    standard library's log records, which would double the time per line.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_collecting(),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(form),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    _configure_libraries(threshold)
    structlog.configure(
        processors=[*_collecting(), *_rendering(form)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *name: _LineLogger(handler, *name),
        cache_logger_on_first_use=False,
    )


def _configure_libraries(threshold: int) -> None:
    """Let libraries log less, and only through the root logger."""
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in _NO_TRACEBACKS:
        logging.getLogger(name).addFilter(_without_traceback)
    for name in _OWN_HANDLERS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(True)


class _LineLogger:
    """Writes lines to the stream of a handler; like the handler, drops lines that fail."""

    def __init__(self, handler: "logging.StreamHandler[TextIO]", name: str = "root") -> None:
        self._handler = handler
        self.name = name

    def msg(self, line: str) -> None:
        handler = self._handler
        handler.acquire()
        try:
            handler.stream.write(f"{line}\n")
            handler.flush()
        except (OSError, ValueError):  # broken pipe, full disk or closed stream
            return
        finally:
            handler.release()

    debug = info = warning = error = critical = exception = msg


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def _collecting() -> list[Processor]:
    """Return the processors that collect a line's fields, shared by service and libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        _add_ids,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]


def _add_ids(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Add the IDs of the current span, unless the line belongs to a run in another trace."""
    del logger, method
    ids = current_ids()
    return {**line, **ids} if line.get("trace_id") in (None, ids.get("trace_id")) else line


def _rendering(form: LogFormat) -> list[Processor]:
    """Return the processors that redact and render a line."""
    exceptions = structlog.processors.ExceptionRenderer(lambda exc_info: format_error(exc_info[1]))
    if form == "json":
        return [exceptions, _redact, structlog.processors.JSONRenderer()]
    renderer = structlog.dev.ConsoleRenderer(timestamp_key="ts", colors=sys.stderr.isatty())
    return [exceptions, _redact, _print_plainly, renderer]


def _print_plainly(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Replace controls in values, because models and tools may have written them."""
    del logger, method
    texts = {name: value for name, value in line.items() if isinstance(value, str)}
    return {**line, **{name: printable(value) for name, value in texts.items()}}


def _redact(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Redact allowlisted fields; replace the values of all other fields with a placeholder."""
    del logger, method
    first = {name: line[name] for name in ("ts", "level", "event") if name in line}
    redacted: dict[str, Any] = {}
    for name, value in {**first, **line}.items():
        if name == "event" and type(value) is str and len(value) <= _EVENT_CHARS:
            redacted[name] = _redacted_event(value)
        elif name in LOG_FIELDS:
            redacted[name] = redact_value(value, name=name)
        else:
            redacted[redact_text(name, max_chars=_NAME_CHARS)] = NOT_LISTED
    if "exception" in line:
        # Tracebacks are long, and the error is at their end.
        redacted["exception"] = redact_value(line["exception"], max_chars=_EXCEPTION_CHARS)
    return redacted


_redacted_event = lru_cache(maxsize=512)(redact_text)

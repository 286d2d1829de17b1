"""Log lines: one JSON object each, with ``ts``, ``level``, ``event`` and the run they belong to."""

import logging
import sys
from functools import lru_cache
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from caseworker.observability.errors import format_error
from caseworker.observability.redaction import redact_text, redact_value
from caseworker.observability.trace_context import current_ids

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
        *("queue", "kind", "kinds", "cost_usd", "tokens", "route", "pid"),
    }
)
"""The fields that a log line may have; the value of any other is not shown."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "console"]

_VERBOSE = (
    *("aiohttp", "alembic.runtime.plugins", "anthropic", "httpcore", "httpx", "httpx2", "openai"),
    *("procrastinate", "sqlalchemy"),
)
"""Libraries that log prompts, rows, queue steps or imports: only their warnings are logged."""

_SILENT = ("mcp",)
"""Libraries whose problems are errors of our calls: their lines would quote what others sent."""

_NO_TRACEBACKS = ("procrastinate.utils",)
"""Loggers whose messages name the error: its frames are the library's own, at every outage."""

_OWN_HANDLERS = ("uvicorn", "uvicorn.access", "uvicorn.error")
"""Loggers that bring handlers of their own."""

_EXCEPTION_CHARS = 20_000
_NAME_CHARS = 60
_EVENT_CHARS = 60
"""Events up to this length are mostly our own, of which there are few."""

NOT_LISTED = "[not shown]"
"""Stands for the value of a field that is not on the allowlist."""


def configure_logging(
    *, level: LogLevel = "info", form: LogFormat = "json", stream: TextIO | None = None
) -> None:
    """Write everything that is logged in this process, by whatever library, in one form.

    ``stream`` is standard error unless given. Lines of the service itself and of libraries look
    alike, carry what structlog's context variables hold, and are redacted. Those of the service
    are written without the records of the standard library, which take as long as everything else
    together.
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
    structlog.configure(
        processors=[*_collecting(), *_rendering(form)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *name: _LineLogger(handler, *name),
        cache_logger_on_first_use=False,
    )


class _LineLogger:
    """Writes lines where a handler does; one that cannot be written is dropped, as there."""

    def __init__(self, handler: "logging.StreamHandler[TextIO]", name: str = "root") -> None:
        self._handler = handler
        self.name = name

    def msg(self, line: str) -> None:
        handler = self._handler
        handler.acquire()
        try:
            handler.stream.write(f"{line}\n")
            handler.flush()
        except (OSError, ValueError):  # its reader is gone, the disk is full, or it is closed
            return
        finally:
            handler.release()

    debug = info = warning = error = critical = exception = msg


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def _collecting() -> list[Processor]:
    """Collect what a line says; the same for our lines and for those of libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        _add_ids,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]


def _add_ids(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Name the current span and its trace, unless the line belongs to a run of another trace."""
    del logger, method
    ids = current_ids()
    return {**line, **ids} if line.get("trace_id") in (None, ids.get("trace_id")) else line


def _rendering(form: LogFormat) -> list[Processor]:
    """Turn what a line says into its text."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(timestamp_key="ts", colors=sys.stderr.isatty())
    )
    return [structlog.processors.ExceptionRenderer(_format_exc_info), _redact, renderer]


def _format_exc_info(exc_info: ExcInfo) -> str:
    return format_error(exc_info[1])


def _redact(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Show the fields that a line may have, redacted, and of all others that they were there."""
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
        # A traceback is long by nature, and its end says what went wrong.
        redacted["exception"] = redact_value(line["exception"], max_chars=_EXCEPTION_CHARS)
    return redacted


_redacted_event = lru_cache(maxsize=512)(redact_text)

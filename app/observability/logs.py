"""Log lines: one JSON object each, with ``ts``, ``level``, ``event`` and the run they belong to."""

import logging
import sys
from contextlib import AbstractContextManager
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from app.observability.field_names import LOG_FIELDS
from app.observability.redaction import redact_text, redact_value
from app.observability.tracebacks import told

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "console"]

_WORDY = (
    *("alembic.runtime.plugins", "anthropic", "httpcore", "httpx", "httpx2", "openai"),
    *("procrastinate", "sqlalchemy"),
)
"""Libraries that would log prompts, rows, each queue step or each import: heard from warnings
upward."""

_SELF_HANDLED = ("uvicorn", "uvicorn.access", "uvicorn.error")
"""Loggers that bring handlers of their own."""

_EXCEPTION_CHARS = 20_000
_NAME_CHARS = 60

NOT_LISTED = "[not shown]"
"""Stands for the value of a field that is not on the allowlist."""


def configure_logging(
    *, level: LogLevel = "info", form: LogFormat = "json", stream: TextIO | None = None
) -> None:
    """Send everything that is logged in this process, by whatever library, through one formatter.

    ``stream`` is standard error unless given. Lines of the service itself and of libraries look
    alike, carry what `run_logging` has bound, and are redacted.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(form))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in _WORDY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _SELF_HANDLED:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*_gathering(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def run_logging(*, run_id: str, tenant: str) -> AbstractContextManager[None]:
    """Give every line logged in the context, also in tasks it starts, the run it belongs to."""
    return structlog.contextvars.bound_contextvars(run_id=run_id, tenant=tenant)


def _gathering() -> list[Processor]:
    """Collect what a line says; the same for our lines and for those of libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]


def _formatter(form: LogFormat) -> logging.Formatter:
    rendering: list[Processor] = (
        [structlog.processors.JSONRenderer()]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(timestamp_key="ts", colors=sys.stderr.isatty())]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_gathering(),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.ExceptionRenderer(_told),
            _redact,
            *rendering,
        ],
    )


def _told(exc_info: ExcInfo) -> str:
    return told(exc_info[1])


def _redact(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Show the fields that a line may have, redacted, and of all others that they were there."""
    del logger, method
    first = {name: line[name] for name in ("ts", "level", "event") if name in line}
    redacted: dict[str, Any] = {
        redact_text(name, max_chars=_NAME_CHARS): redact_value(value, name=name)
        if name in LOG_FIELDS
        else NOT_LISTED
        for name, value in {**first, **line}.items()
    }
    if "exception" in line:
        # A traceback is long by nature, and its end says what went wrong.
        redacted["exception"] = redact_value(line["exception"], max_chars=_EXCEPTION_CHARS)
    return redacted

"""Log lines and tracebacks as a log collector reads them."""

import ast
import asyncio
import io
import json
import logging
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog

from caseworker.engine.report import StepTimeoutError
from caseworker.platform.logs.errors import MAX_MESSAGE_CHARS, format_error, message_of
from caseworker.platform.logs.logs import (
    LOG_FIELDS,
    NOT_LISTED,
    configure_logging,
)
from caseworker.platform.logs.trace_context import within_span
from tests.support.syntax import parsed


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Yield the stream of log lines, and restore the logging configuration afterwards."""
    root = logging.getLogger()
    handlers, level, show = root.handlers[:], root.level, warnings.showwarning
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    warnings.showwarning = show
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_names_the_current_span_and_its_trace(stream: io.StringIO) -> None:
    """Lines of traced requests and of libraries name the span; a run has its own trace."""
    configure_logging(stream=stream)

    with within_span("ab" * 16, "cd" * 8, sampled=True):
        structlog.get_logger("app").info("asked")
        logging.getLogger("library").info("asked")
        structlog.get_logger("app").info("asked", trace_id="ef" * 16)
    structlog.get_logger("app").info("asked")

    told = [(line.get("trace_id"), line.get("span_id")) for line in lines(stream)]
    here = "ab" * 16, "cd" * 8
    assert told == [here, here, ("ef" * 16, None), (None, None)]


@pytest.mark.req("002/19.1")
def test_a_line_is_one_json_object_with_time_level_and_event(stream: io.StringIO) -> None:
    """Newlines and quotes in a value do not split the line."""
    configure_logging(stream=stream)

    structlog.get_logger("caseworker.runs").info(
        "accepted", tier="small", detail='two\nlines "quoted"'
    )

    [line] = lines(stream)
    assert line["ts"].endswith("Z")
    assert list(line)[:3] == ["ts", "level", "event"]
    assert line | {"ts": ""} == {
        "ts": "",
        "level": "info",
        "event": "accepted",
        "tier": "small",
        "detail": 'two\nlines "quoted"',
        "logger": "caseworker.runs",
    }


@pytest.mark.req("002/22.2")
async def test_lines_carry_the_run_they_belong_to(stream: io.StringIO) -> None:
    """Lines of libraries and of the run's tasks carry it too; later lines do not."""
    configure_logging(stream=stream)

    async def child() -> None:
        logging.getLogger("some.library").warning("from a task")

    with structlog.contextvars.bound_contextvars(run_id="run-1", tenant="acme"):
        structlog.get_logger().info("begun")
        await asyncio.create_task(child())
    structlog.get_logger().info("idle")

    begun, inside, after = lines(stream)
    assert (begun["run_id"], begun["tenant"]) == ("run-1", "acme")
    assert (inside["run_id"], inside["event"]) == ("run-1", "from a task")
    assert "run_id" not in after


@pytest.mark.req("002/19.2")
@pytest.mark.guarantee(15)
def test_nothing_secret_gets_through_any_door(stream: io.StringIO) -> None:
    """Events, fields, library messages and tracebacks are redacted."""
    configure_logging(stream=stream)
    secret = "ada@example.org"

    structlog.get_logger().info(f"mail to {secret}", args={"to": secret, "api_key": "hunter2"})
    logging.getLogger("uvicorn.error").warning("GET %s", f"/?email={secret}")
    try:
        raise ValueError(secret)
    except ValueError:
        structlog.get_logger().exception("failed")

    assert len(lines(stream)) == 3
    assert "Traceback" in lines(stream)[2]["exception"]
    assert secret not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.req("002/19.2")
def test_a_field_that_is_not_on_the_allowlist_is_not_shown(stream: io.StringIO) -> None:
    """The value is hidden whatever it is, so a question cannot be logged by accident."""
    configure_logging(stream=stream)

    structlog.get_logger().info("accepted", question="Who is Ada?", status="queued")

    [line] = lines(stream)
    assert (line["question"], line["status"]) == (NOT_LISTED, "queued")
    assert "Ada" not in stream.getvalue()


@pytest.mark.req("002/19.2")
def test_a_traceback_shows_no_row_that_a_database_refused(stream: io.StringIO) -> None:
    """For errors of libraries only the first line of the message is shown."""
    configure_logging(stream=stream)
    row = "A" + "da"

    try:
        try:
            raise RuntimeError(f"violates a constraint\nDETAIL: Failing row contains ({row})")
        except RuntimeError as error:
            raise StepTimeoutError("No result within 5 ms.") from error
    except StepTimeoutError:
        structlog.get_logger().exception("failed")

    told = lines(stream)[0]["exception"]
    assert "Ada" not in stream.getvalue()
    assert "RuntimeError: violates a constraint" in told
    assert (
        told.index("violates") < told.index("direct cause") < told.index("No result within 5 ms.")
    )


def test_lines_below_the_level_are_dropped(stream: io.StringIO) -> None:
    """The level applies to lines of the service and of libraries."""
    configure_logging(stream=stream, level="warning")

    structlog.get_logger().info("quiet")
    logging.getLogger("some.library").info("quiet")
    structlog.get_logger().warning("loud")

    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_libraries_that_would_log_contents_stay_quiet_at_debug(stream: io.StringIO) -> None:
    """Debug logging must not print prompts and rows."""
    configure_logging(stream=stream, level="debug")

    for name in (
        "openai._base_client",
        "httpx",
        "sqlalchemy.engine.Engine",
        "procrastinate.worker",
    ):
        logging.getLogger(name).debug("everything")
        logging.getLogger(name).info("everything")
    structlog.get_logger().debug("ours")

    assert [line["event"] for line in lines(stream)] == ["ours"]


def test_what_an_outage_does_to_the_queue_is_said_in_one_line(stream: io.StringIO) -> None:
    """The library logs the error with all frames of its pool."""
    configure_logging(stream=stream)

    try:
        raise TimeoutError
    except TimeoutError as error:
        logging.getLogger("procrastinate.utils").error("heartbeat error: %r", error, exc_info=error)

    [line] = lines(stream)
    assert line["event"] == "heartbeat error: TimeoutError()"
    assert "exception" not in line


def test_warnings_are_log_lines(stream: io.StringIO) -> None:
    """A library's deprecation warning does not break the JSON stream."""
    configure_logging(stream=stream)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning("old", DeprecationWarning, "file.py", 1)

    assert lines(stream)[0]["logger"] == "py.warnings"


def test_the_console_format_is_for_people(stream: io.StringIO) -> None:
    """The console format shows the same redacted content."""
    configure_logging(stream=stream, form="console")

    structlog.get_logger("app").info("accepted", tier="small", detail="ada@example.org")

    assert "accepted" in stream.getvalue()
    assert "tier=small" in stream.getvalue()
    assert "ada@" not in stream.getvalue()


def test_configuring_twice_logs_once(stream: io.StringIO) -> None:
    """The command line and the server may both configure logging."""
    configure_logging(stream=stream)
    configure_logging(stream=stream)

    structlog.get_logger().info("once")
    logging.getLogger("uvicorn.access").info("once")

    assert len(lines(stream)) == 2


APP = Path(__file__).parents[4] / "app"
_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "bind"})


def logged_in_app() -> Iterator[tuple[str, ast.Call]]:
    """Yield every logger call with its position in the source."""
    for file in sorted(APP.rglob("*.py")):
        for node in ast.walk(parsed(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id="log" | "_LOG") | ast.Attribute(attr="_log"), attr=level
                    )
                ) if level in _LEVELS:
                    yield f"{file.relative_to(APP)}:{node.lineno}", node


@pytest.fixture(scope="module")
def logged() -> list[tuple[str, ast.Call]]:
    """Return every logger call; it is cached because parsing takes a second."""
    return list(logged_in_app())


@pytest.mark.req("002/19.2", "002/19.5")
def test_lines_have_fields_of_the_allowlist_alone(logged: list[tuple[str, ast.Call]]) -> None:
    """The values of other fields would be hidden in the log."""
    strangers = [
        f"{place} {keyword.arg}"
        for place, call in logged
        for keyword in call.keywords
        if keyword.arg not in LOG_FIELDS | {"exc_info"}  # logged as "exception"
    ]

    assert len(logged) > 15
    assert strangers == []


@pytest.mark.req("002/19.2")
def test_lines_say_what_happened_in_words_that_stand_in_the_source(
    logged: list[tuple[str, ast.Call]],
) -> None:
    """An event that contains a value could hold personal data and could not be searched for."""
    events = [(place, call.args[0]) for place, call in logged if call.args]  # bind has no event
    assert [place for place, event in events if not isinstance(event, ast.Constant)] == []


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_traceback_says_where_and_what() -> None:
    """Frames, class and message have Python's own format."""
    shown = format_error(raised(ValueError("no number")))

    assert shown.startswith("Traceback (most recent call last):\n  File ")
    assert shown.endswith("\nValueError: no number")


@pytest.mark.req("002/19.2")
def test_only_our_own_messages_are_shown_whole() -> None:
    """Messages of other libraries are cut to their first line, because they may quote input."""
    assert message_of(StepTimeoutError("one\ntwo")) == "one\ntwo"
    assert message_of(ValueError("one\ntwo")) == "one"
    assert message_of(ValueError("x " * 500)).startswith("x " * 100)
    assert len(message_of(ValueError("x " * 500))) <= MAX_MESSAGE_CHARS


@pytest.mark.req("002/19.2")
def test_a_message_is_not_cut_in_the_middle_of_a_secret() -> None:
    """Half an email address still identifies a person."""
    for length in range(250, 300, 3):
        error = ValueError(
            f"{'x' * length} ada.king.countess.of.lovelace@mail.example.org is taken"
        )
        assert "king" not in message_of(error)


def test_every_error_of_a_group_is_format_error() -> None:
    """A task group raises all errors of its tasks."""
    group = ExceptionGroup("two", [raised(ValueError("one")), raised(KeyError("other"))])

    shown = format_error(raised(group))

    assert "  | ValueError: one" in shown
    assert "  | KeyError: 'other'" in shown


def test_what_was_being_handled_is_told_unless_it_was_put_aside() -> None:
    """``raise … from None`` suppresses the context."""

    def fail(*, aside: bool) -> None:
        try:
            raise KeyError("first")
        except KeyError:
            if aside:
                raise ValueError("second") from None
            raise ValueError("second")  # noqa: B904

    with pytest.raises(ValueError, match="second") as both:
        fail(aside=False)
    with pytest.raises(ValueError, match="second") as one:
        fail(aside=True)

    assert "another exception occurred" in format_error(both.value)
    assert "first" in format_error(both.value)
    assert "first" not in format_error(one.value)


def test_errors_that_caused_one_another_end() -> None:
    """A cycle of causes is cut, and an error whose message raises is still formatted."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    error = BrokenError()
    error.__cause__ = error

    assert format_error(error).count("its message cannot be read") == 8


def test_a_line_that_cannot_be_written_breaks_nothing(stream: io.StringIO) -> None:
    """Logging continues if the reader of the log is gone or its disk is full."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    configure_logging(stream=Full())
    structlog.get_logger().warning("lost")

    closed = io.StringIO()
    closed.close()
    configure_logging(stream=closed)
    structlog.get_logger().warning("lost too")

    configure_logging(stream=stream)
    structlog.get_logger().warning("written")
    assert [line["event"] for line in lines(stream)] == ["written"]


def test_lines_of_several_threads_stay_whole(stream: io.StringIO) -> None:
    """Lines are written under the lock that library loggers use."""
    configure_logging(stream=stream)

    def write(number: int) -> None:
        for _ in range(50):
            structlog.get_logger().info("of a thread", count=number)
            logging.getLogger("a.library").info("of a thread")

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(write, range(4)))

    assert [line["event"] for line in lines(stream)] == ["of a thread"] * 400

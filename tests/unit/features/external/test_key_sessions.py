"""The name of a session in a request, and whether a session may open another run."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caseworker.core.budget.stops import StopCause, StopKind
from caseworker.features.external.key_sessions import (
    UNNAMED,
    SessionRefusedError,
    SessionState,
    hash_of_session,
    may_name_session,
    session_in_body,
    session_in_headers,
)
from caseworker.runs.run import RunStatus

pytestmark = pytest.mark.req("cw/19.sessions")

CLAUDE = '{"device_id":"d","account_uuid":"","session_id":"s"}'


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"metadata": {"session_id": "s"}}, "s"),
        ({"metadata": {"user_id": CLAUDE}}, "s"),
        ({"metadata": {"user_id": "user_1_account__session_s"}}, "s"),
        ({"metadata": {"user_id": "u"}}, None),
        ({"metadata": {"user_id": "{not json"}}, None),
        ({"metadata": {"user_id": '{"session_id": 1}'}}, None),
        ({"metadata": {"session_id": 1}}, None),
        ({"metadata": {"session_id": ""}}, None),
        ({"metadata": []}, None),
        ({"session_id": "s"}, None),
        ([], None),
    ],
)
def test_the_metadata_of_a_body_may_name_its_session(document: Any, name: str | None) -> None:
    """Values of other types name none."""
    assert session_in_body(document) == name


def test_the_first_present_header_names_the_session() -> None:
    """An empty one counts as absent."""
    headers = {"session-id": "codex", "x-claude-code-session-id": "claude", "x-caseworker-run": ""}

    assert session_in_headers(headers) == "claude"
    assert session_in_headers({}) is None


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "\x7f"])
def test_an_invalid_name_is_refused(name: str) -> None:
    """A name has at most 200 printable characters."""
    with pytest.raises(SessionRefusedError, match="at most 200 printable characters"):
        session_in_headers({"x-caseworker-run": name})


def test_only_bodies_that_may_name_a_session_are_parsed() -> None:
    """Parsing a long body twice takes time."""
    assert may_name_session(b'{"metadata": {"session_id": "s"}}')
    assert may_name_session(b'{"metadata": {"user_id": "u_account__session_s"}}')
    assert not may_name_session(b'{"messages": []}')


def halted(scope: str, *, resets_in: timedelta | None = None) -> SessionState:
    """Return a session whose run was halted a moment ago."""
    now = datetime.now(UTC)
    resets_at = None if resets_in is None else now + resets_in
    stop = StopCause(kind=StopKind.BUDGET, scope=scope, resets_at=resets_at)
    return SessionState(run_id="r", status=RunStatus.HALTED, stop=stop, finished_at=now)


def test_a_session_without_budget_opens_no_run_until_its_budget_is_renewed() -> None:
    """A limit of the run itself only ends the run."""
    session = hash_of_session("s")

    assert halted("budget of the session").refusal(session) is not None
    assert halted("budget of the key, day", resets_in=timedelta(hours=1)).refusal(session)
    assert halted("budget of the key, day", resets_in=timedelta(0)).refusal(session) is None
    assert halted("run").refusal(session) is None
    for status in (RunStatus.COMPLETED, RunStatus.FAILED):
        assert SessionState(run_id="r", status=status).refusal(session) is None


def test_a_cancel_ends_a_named_session_and_the_unnamed_one_until_the_next_day() -> None:
    """Both stop the agent that uses the session."""
    now = datetime.now(UTC)
    cancelled = SessionState(
        run_id="r",
        status=RunStatus.CANCELLED,
        stop=StopCause(kind=StopKind.CANCELLED),
        finished_at=now,
    )
    named, unnamed = (cancelled.refusal(each) for each in (hash_of_session("s"), UNNAMED))

    assert named is not None
    assert unnamed is not None
    assert named.resets_at is None
    assert unnamed.resets_at is not None
    assert now < unnamed.resets_at <= now + timedelta(days=1)
    assert (unnamed.resets_at.hour, unnamed.resets_at.minute) == (0, 0)
    yesterday = SessionState(
        run_id="r",
        status=RunStatus.CANCELLED,
        stop=cancelled.stop,
        finished_at=now - timedelta(days=1),
    )
    assert yesterday.refusal(UNNAMED) is None

"""Standing keys at the gateway: each request belongs to a session, and a session to an open run.

The name of a session is in a header or in the body of its requests. The first request of a session
opens an external run. After the idle time the run completes, and the next request opens another
one. All runs of a session reserve in the same accounts.

A row of ``key_sessions`` decides: it holds the ID of the newest run of a session, which is reserved
before the run is stored. Processes that open a run at the same time store the same run, so only one
of them creates it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from caseworker.core.budget.stops import StopCause, StopKind, rfc3339
from caseworker.features.access.agent_keys import AGENT_FORM, AgentTerms
from caseworker.features.access.keys import sha256_of
from caseworker.platform.caller import Caller, InvalidCredentialError, KeyScope, with_implied
from caseworker.runs.run import TERMINAL, RunKey, RunStatus

SESSION_HEADERS: Final = (
    "x-caseworker-run",
    "x-claude-code-session-id",
    "session_id",
    "session-id",
    "conversation_id",
    "x-session-id",
)
"""Headers that name the session of a request; the first one that is present counts."""
MAX_SESSION_CHARS: Final = 200
UNNAMED: Final = ""
"""Hash of the unnamed session, to which requests without a name belong."""

_HINT: Final = b"session_"
_CLAUDE_SESSION: Final = "_session_"
RUN_SCOPE: Final = "run"
"""Scope of the limits of a run itself, in its stop."""


class SessionRefusedError(Exception):
    """A session may not open a run, or its name is invalid.

    ``resets_at`` is the time at which it may open one again; None if no time is known.
    """

    def __init__(self, message: str, code: str, resets_at: datetime | None = None) -> None:
        until = "" if resets_at is None else f" Retry at {rfc3339(resets_at)}."
        super().__init__(f"{message}{until}")
        self.code = code
        self.resets_at = resets_at


class UnknownKeyError(LookupError):
    """The key of a request is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingKey:
    """A standing key that works."""

    key_id: str
    tenant: str
    name: str
    account: str
    terms: AgentTerms

    def accounts(self, session: str) -> tuple[str, str]:
        """Return the names of the accounts of the key and of one of its sessions."""
        return f"key:{self.account}", f"session:{self.account}" + (f":{session}" if session else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """The usage of a standing key by calls that have ended, and the last halt of its sessions."""

    at: datetime
    """Time of the database."""
    cost_usd: Decimal
    tokens: int
    llm_calls: int
    api_calls: int
    run_id: str | None = None
    """Newest run of the halted session; None if no session was halted."""
    stop: StopCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The newest run of a session of a standing key."""

    run_id: str | None = None
    """None if the session has had no run."""
    status: RunStatus | None = None
    """None if the run is not stored yet, or was erased."""
    stop: StopCause | None = None
    finished_at: datetime | None = None
    is_here: bool = False
    """Whether this process has just opened the run."""

    @property
    def is_open(self) -> bool:
        """Whether the run is stored and has not ended."""
        return self.status is not None and self.status not in TERMINAL

    def refusal(self, session: str) -> StopCause | None:
        """Return why the session has ended; None if it may open another run.

        A halt by an account and a cancel end a session. The unnamed one may open a run again on the
        next UTC day. A limit of the run itself only ends the run.
        """
        if self.status not in (RunStatus.HALTED, RunStatus.CANCELLED):
            return None
        stop = self.stop or StopCause(kind=StopKind.CANCELLED)
        if stop.scope == RUN_SCOPE:
            return None
        if stop.resets_at is None and session == UNNAMED and self.finished_at is not None:
            day = self.finished_at.astimezone(UTC).date() + timedelta(days=1)
            stop = replace(stop, resets_at=datetime.combine(day, time(), UTC))
        is_over = stop.resets_at is not None and stop.resets_at <= datetime.now(UTC)
        return None if is_over else stop


def parsed_key(credential: str) -> tuple[str, bytes] | None:
    """Return the ID and the SHA-256 of a standing key; None if the credential has another form."""
    form = AGENT_FORM.fullmatch(credential)
    return None if form is None else (form[1], sha256_of(credential))


def session_in_headers(headers: Mapping[str, str]) -> str | None:
    """Return the name of the session in the headers of a request; None without one.

    Raises:
        SessionRefusedError: the name is invalid.
    """
    for header in SESSION_HEADERS:
        if name := headers.get(header):
            return _checked(name, header)
    return None


def may_name_session(content: bytes) -> bool:
    """Return whether it is worth parsing a body for the name of its session."""
    return _HINT in content


def session_in_body(document: Any) -> str | None:
    """Return the name of the session in the metadata of a body; None without one.

    Raises:
        SessionRefusedError: the name is invalid.
    """
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return None
    if isinstance(name := metadata.get("session_id"), str) and name:
        return _checked(name, "metadata.session_id")
    user = metadata.get("user_id")
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            of_user = json.loads(user)
        except (ValueError, RecursionError):
            return None
        name = of_user.get("session_id") if isinstance(of_user, dict) else None
        return _checked(name, "metadata.user_id") if isinstance(name, str) and name else None
    _, _, name = user.rpartition(_CLAUDE_SESSION) if _CLAUDE_SESSION in user else ("", "", "")
    return _checked(name, "metadata.user_id") if name else None


def _checked(name: str, place: str) -> str:
    if len(name) > MAX_SESSION_CHARS or not name.isprintable():
        message = f"The name of a session in {place} has at most {MAX_SESSION_CHARS} printable "
        raise SessionRefusedError(f"{message}characters.", "invalid_session")
    return name


def hash_of_session(name: str | None) -> str:
    """Return the hash under which a session is stored."""
    return UNNAMED if name is None else hashlib.sha256(name.encode()).hexdigest()[:32]


def caller_with(key: StandingKey | None, run: RunKey | None) -> Caller:
    """Return the caller with a standing key, who may read the run ``run`` of its sessions.

    None is a run of another caller, which the key may not read.

    Raises:
        InvalidCredentialError: the key does not work.
    """
    if key is None:
        raise InvalidCredentialError
    run_id = "" if run is None else run.run_id
    scopes = with_implied([KeyScope.READ])
    return Caller(key.tenant, key.name, scopes, run_id=run_id, key_id=key.key_id)

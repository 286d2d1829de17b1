"""The journal interface that the engine needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from caseworker.core.budget.usage import NOTHING, Charge
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import StepPath

HASH_CHARS = 32
"""Hexadecimal digits kept of a request hash: 128 bits, enough to compare it with one other hash."""

IF_LOST = "if_lost"
"""Key in the value of a call in flight: the usage, as in a CallNode, if its worker is lost."""


class CallOutcome(StrEnum):
    """The outcome of a recorded call or step."""

    RESULT = "result"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """It was allowed to start, but its worker was lost before it ended."""
    NOT_MADE = "not_made"
    """A limit or a stop refused it before it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The journal record of a call or step from an earlier execution."""

    node_id: str
    outcome: CallOutcome
    request_hash: str
    value: Any = None
    """The JSON value of the result or of the failure."""
    taken_over: bool = False
    """True if the record was imported from another run. It is used even if the request hash
    differs, and it is not charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The journal entry of a call or step, stored together with its CallNode."""

    call_key: str
    request_hash: str
    charge: Charge
    """The cost; while in flight, including the amount reserved for it."""
    outcome: CallOutcome | None = None
    """None while in flight."""
    value: Any = None
    """The JSON value of the result or failure; for a call in flight, its usage if it is lost."""


def step_entry(
    path: StepPath, charge: Charge, outcome: CallOutcome | None = None, value: object = None
) -> Entry:
    """Build the journal entry of a step."""
    return Entry(
        call_key=path.record_key, request_hash="", charge=charge, outcome=outcome, value=value
    )


class Journal(Protocol):
    """The durable record of one run, from which another worker can resume it."""

    def recorded(self, call_key: str) -> Recorded | None:
        """Return the record of a call or step from an earlier execution, if any."""
        ...

    def spent_below(self, path: StepPath) -> Charge:
        """Return the charges of earlier executions for calls and steps inside a step."""
        ...

    def note(self, node_id: str, entry: Entry) -> None:
        """Buffer an entry; it is durable after the next external barrier.

        Raises:
            ValueError: the value cannot be stored.
        """
        ...

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Buffer the request of a call as traces may show it; it is stored with the call's node."""
        ...

    def touch(self) -> None:
        """Signal that the run's ExecutionGraph has changed and should be stored soon."""
        ...

    async def barrier(self, *, external: bool) -> None:
        """Check that this worker still owns the run and that no cancel request is pending.

        For an external call, all earlier entries are durable afterwards, and the check is fresh. A
        call that stays inside the process may rely on a check that is at most 100 ms old.

        Raises:
            Stop: the run was cancelled, or another worker owns it now.
        """
        ...


class NullJournal:
    """A journal that stores nothing; its barrier only checks the cancellation token."""

    def __init__(self, token: CancellationToken) -> None:
        self._token = token

    def recorded(self, call_key: str) -> Recorded | None:
        """Return None, because there is no earlier execution."""
        return None

    def spent_below(self, path: StepPath) -> Charge:
        """Return an empty charge, because there is no earlier execution."""
        return NOTHING

    def note(self, node_id: str, entry: Entry) -> None:
        """Discard the entry."""

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Discard the request."""

    def touch(self) -> None:
        """Do nothing."""

    async def barrier(self, *, external: bool) -> None:
        """Raise the stop if one is set."""
        self._token.check()

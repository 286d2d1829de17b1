"""What the engine needs from outside: a journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from caseworker.control.usage import NOTHING, Charge
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import StepPath

HASH_CHARS = 32
"""How much of the hash of a request is kept: 128 bits, compared with one other hash alone."""

IF_LOST = "if_lost"
"""Key of the value of a call in flight: its usage if its worker is lost, as a CallNode has it."""


class CallOutcome(StrEnum):
    """How a recorded call or step ended."""

    RESULT = "result"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """It was allowed to begin, and its outcome is unknown: its worker was lost."""
    NOT_MADE = "not_made"
    """It was refused before it began, by a limit or a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the journal knows of an earlier try of a call or step."""

    node_id: str
    outcome: CallOutcome
    request_hash: str
    value: Any = None
    """The JSON value of a result, or of a failure."""
    taken_over: bool = False
    """True of what another run has recorded: it counts whatever is asked now, and costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is journaled of a call or step beside its CallNode."""

    call_key: str
    request_hash: str
    charge: Charge
    """What it has cost, or what is reserved for it while it is in flight."""
    outcome: CallOutcome | None = None
    """None while it is in flight."""
    value: Any = None
    """Of an end, its JSON value; of a call in flight, what it has used if it is lost."""


def step_entry(
    path: StepPath, charge: Charge, outcome: CallOutcome | None = None, value: object = None
) -> Entry:
    """Return what is journaled of a step."""
    return Entry(
        call_key=path.record_key, request_hash="", charge=charge, outcome=outcome, value=value
    )


class Journal(Protocol):
    """The durable memory of one run."""

    def recorded(self, call_key: str) -> Recorded | None:
        """Return what an earlier try of this call or step left, if there was one."""
        ...

    def spent_below(self, path: StepPath) -> Charge:
        """Return what earlier executions have charged for what happened inside a step."""
        ...

    def note(self, node_id: str, entry: Entry) -> None:
        """Remember an entry; it is durable once a later barrier has passed.

        Raises:
            ValueError: the value cannot be stored.
        """
        ...

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Keep what a call asks, as a trace may show it; it is stored with the call's node."""
        ...

    def touch(self) -> None:
        """Say that the run's ExecutionGraph has changed, so that it gets stored soon."""
        ...

    async def barrier(self, *, external: bool) -> None:
        """Pass only while this worker owns the run and nobody asked the run to stop.

        For an external call everything noted so far is durable afterwards, and the permission
        was asked for. A call that stays inside the process may rely on an earlier permission that
        is at most 100 ms old.

        Raises:
            Stop: the run was asked to stop, or belongs to another worker now.
        """
        ...


class NullJournal:
    """Implements the journal without remembering anything; only a stop bars the way."""

    def __init__(self, token: CancellationToken) -> None:
        self._token = token

    def recorded(self, call_key: str) -> Recorded | None:
        """Return None: nothing was executed before."""
        return None

    def spent_below(self, path: StepPath) -> Charge:
        """Return nothing, for the same reason."""
        return NOTHING

    def note(self, node_id: str, entry: Entry) -> None:
        """Forget an entry."""

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Forget a request."""

    def touch(self) -> None:
        """Store nothing."""

    async def barrier(self, *, external: bool) -> None:
        """Pass, or raise the stop that was given."""
        self._token.check()

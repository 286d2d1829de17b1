"""The interface of the journal, as the engine needs it.

The journal is the durable record of a run. A barrier is a point in an execution at which everything
before must be durable before the execution may continue.

See docs/internals.md, "The journal and its barrier".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from caseworker.core.budget.accounts import Hold, HoldAnswer
from caseworker.core.budget.ledger import FreeAmounts
from caseworker.core.budget.usage import NOTHING, Charge
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import StepPath

HASH_CHARS = 32
"""Number of hexadecimal digits kept of a request hash. 128 bits are enough to compare two
hashes."""

BULK = "bulk"
"""Key in the journal value of a call. It holds ASCII text that the size limits of values and runs
do not count, because the call has a limit for it."""

IF_LOST = "if_lost"
"""Key in the journal value of a call in flight. It holds the usage to charge if the worker is
lost."""


class CallOutcome(StrEnum):
    """The outcome of a call or step in the journal."""

    RESULT = "result"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """The call or step was allowed to start, but its worker was lost before it ended."""
    NOT_MADE = "not_made"
    """A limit or a stop refused the call or step before it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The journal's record of a call or step from an earlier execution."""

    node_id: str
    outcome: CallOutcome
    request_hash: str
    value: Any = None
    """Result or failure as a JSON value."""
    imported: bool = False
    """Whether the record was imported from another run. It is then used even if the request hash
    differs, and it is not charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The journal's entry for a call or step; it is stored together with its CallNode."""

    call_key: str
    request_hash: str = ""
    """Hash of a call's request; steps have none."""
    charge: Charge
    """Cost so far; while the call is in flight, it includes the amount reserved for it."""
    outcome: CallOutcome | None = None
    """Outcome; None while the call or step is in flight."""
    value: Any = None
    """Result or failure as a JSON value; for a call in flight, the usage to charge if it is
    lost."""


class Journal(Protocol):
    """The durable record of one run, from which another worker can resume the run."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier execution of the run has stored records."""
        ...

    def recorded(self, call_key: str) -> Recorded | None:
        """Return the record of a call or step from an earlier execution, or None."""
        ...

    def recorded_below(self, prefix: str) -> Mapping[str, Recorded]:
        """Return the records of earlier executions whose keys begin with ``prefix``, by key."""
        ...

    def spent_below(self, path: StepPath) -> Charge:
        """Return the total charge of earlier executions for the calls and steps inside a step."""
        ...

    def note(self, node_id: str, entry: Entry) -> None:
        """Buffer an entry; it is durable after the next barrier with ``external=True``.

        Raises:
            ValueError: the value cannot be stored.
        """
        ...

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Buffer the displayable request of a call; it is stored with the call's node."""
        ...

    def touch(self) -> None:
        """Schedule a write, because the run's ExecutionGraph has changed."""
        ...

    async def barrier(self, *, external: bool) -> None:
        """Check that this worker still owns the run and that no cancel request is pending.

        Before an external call, set ``external``: all earlier entries are then durable afterwards,
        and the check is fresh. A call that stays inside the process may rely on a check that is at
        most 100 ms old.

        Raises:
            Stop: the run was cancelled, or another worker owns it now.
        """
        ...


class AccountQueuePosition(Protocol):
    """The position of one call among the calls that wait for the accounts of a run."""

    async def enter(self) -> None:
        """Wait while calls that arrived earlier wait."""
        ...

    async def wait(self) -> None:
        """Wait until the accounts may have changed since the last answer."""
        ...

    def leave(self) -> None:
        """Leave the queue; repeating the call changes nothing."""
        ...


class RunAccounts(Protocol):
    """The accounts above a run, in which each of its model calls reserves its maximum."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the accounts."""
        ...

    def free_amounts(self) -> FreeAmounts:
        """Return about how much is free in the accounts; a dimension without a limit is absent."""
        ...

    def queue_position(self) -> AccountQueuePosition:
        """Return a new position behind all calls that wait for the accounts in this process."""
        ...

    async def barrier(self, hold: Hold) -> HoldAnswer:
        """Pass the journal's barrier and reserve ``hold``, in the same statement.

        Raises:
            Stop: the run was cancelled, or another worker owns it now.
        """
        ...

    def settle(self, hold: Hold, charge: Charge) -> None:
        """Replace a hold by the actual charge; stored with the next changes of the journal.

        It may be called for a hold that was not stored.
        """
        ...


class NullJournal:
    """A journal that stores nothing; its barrier only checks the cancellation token."""

    resumes = False
    """Always False, because no earlier execution exists."""

    def __init__(self, token: CancellationToken) -> None:
        self._token = token

    def recorded(self, call_key: str) -> Recorded | None:
        """Return None, because no earlier execution exists."""
        return None

    def recorded_below(self, prefix: str) -> Mapping[str, Recorded]:
        """Return an empty mapping, because no earlier execution exists."""
        return {}

    def spent_below(self, path: StepPath) -> Charge:
        """Return an empty charge, because no earlier execution exists."""
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

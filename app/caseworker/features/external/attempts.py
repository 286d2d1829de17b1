"""The attempts of a session's client: their keys, their replay, and the replies in progress.

A client that starts again opens an attempt. It repeats its requests, and each gets the reply that
an earlier attempt got for an equal request. Only the newest attempt may make calls.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from caseworker.features.external.postgres import AttemptState, PostgresAttempts
from caseworker.features.external.recorded import RecordedCall, RecordedCalls, differences
from caseworker.models.client_bodies import ClientBody
from caseworker.models.relay import Relay

FRESH_SECONDS: Final = 0.005
"""Age of an attempt's state above which it is read again before a call."""


class SupersededError(Exception):
    """A later attempt of the run was opened, so that this one may make no more calls."""


@dataclass(slots=True, kw_only=True)
class AttemptKey:
    """The key in a request, with the state of its attempt at the time ``read_at``."""

    store: PostgresAttempts
    sha256: bytes
    state: AttemptState
    read_at: float

    @classmethod
    async def read(cls, store: PostgresAttempts, sha256: bytes) -> "AttemptKey | None":
        """Return the key with this hash; None if no attempt has it."""
        state, read_at = await store.find(sha256), time.monotonic()
        if state is None:
            return None
        return cls(store=store, sha256=sha256, state=state, read_at=read_at)

    async def reread(self) -> bool:
        """Read the state again; return False if the key was revoked."""
        state, self.read_at = await self.store.find(self.sha256), time.monotonic()
        self.state = state or self.state
        return state is not None

    async def refresh(self) -> bool:
        """Read the state again if it may be out of date; return False if the key was revoked."""
        return time.monotonic() - self.read_at <= FRESH_SECONDS or await self.reread()


class PendingReply:
    """The reply to a request that is being answered, and the clients that wait for it."""

    task: "asyncio.Task[None]"

    def __init__(self, digest: str, call_key: str | None) -> None:
        self.digest = digest
        """Hash of the request."""
        self.relay = Relay()
        self._call_key = call_key
        self._clients = 1
        self._lingering: asyncio.TimerHandle | None = None

    def is_repeated_by(self, call_key: str | None, *, is_retry: bool) -> bool:
        """Return whether a request with equal content is this request again."""
        if self.relay.failed or (self.task.done() and not self.relay.has_started):
            return False
        if call_key is not None or self._call_key is not None:
            return call_key == self._call_key
        return is_retry or self._clients == 0

    def join(self) -> None:
        """Add a client."""
        self._clients += 1
        if self._lingering is not None:
            self._lingering.cancel()

    def leave(self, linger_seconds: float) -> None:
        """Remove a client whose connection was closed; without clients, the call ends later."""
        self._clients -= 1
        if self._clients == 0 and not self.task.done():
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(linger_seconds, self.task.cancel)


class Attempts:
    """The attempts of one session, and the recorded calls and pending replies that they share."""

    def __init__(self, recorded: Iterable[RecordedCall], *, replays: bool) -> None:
        """``recorded`` are the model calls of earlier executions of the run."""
        self.current = 0
        """Number of the newest attempt whose client has made a call; 0 if none has."""
        self.newest = 0
        """Number of the newest attempt that was opened, as far as this process knows."""
        self.calls = RecordedCalls(recorded)
        self._replays = replays
        self._opening = asyncio.Lock()
        self._pending: defaultdict[str, list[PendingReply]] = defaultdict(list)
        """Replies that no client has received completely, by the hash of their request."""
        self._has_diverged = False

    def note_opened(self, attempt: int) -> None:
        """Note that a key was issued for an attempt; earlier attempts make no more calls."""
        self.newest = max(self.newest, attempt)

    async def use(self, key: AttemptKey, start: Callable[..., None]) -> None:
        """Note that a client makes a call with a key.

        The first call of an attempt starts it with ``start``. A later attempt may have been opened
        by any process while the body of the request arrived.

        Raises:
            SupersededError: a later attempt was opened, or the key was revoked.
        """
        async with self._opening:
            newest = max(self.current, self.newest)
            if not await key.refresh() or key.state.attempt < max(newest, key.state.newest):
                raise SupersededError
            if key.state.attempt > self.current:
                start(key.state.attempt, first_use=await key.store.use(key.sha256))

    def start(self, attempt: int, *, first_use: bool) -> bool:
        """Start an attempt, whose requests join no earlier ones; return whether it gets replays.

        ``first_use`` is whether this is the attempt's first call. An attempt that continues after
        this process recovered the run has had its replies, so it gets none.
        """
        replays = self._replays and first_use
        self.current, self._has_diverged = attempt, False
        self.calls.opened(attempt, replays=replays)
        self._pending.clear()
        return replays

    def joined(self, digest: str, call_key: str | None, *, is_retry: bool) -> PendingReply | None:
        """Return the pending reply to the request that this one repeats, with one more client."""
        for reply in self._pending[digest]:
            if reply.is_repeated_by(call_key, is_retry=is_retry):
                reply.join()
                return reply
        return None

    def add(self, reply: PendingReply) -> None:
        """Let equal requests join a reply."""
        self._pending[reply.digest].append(reply)

    def delivered(self, reply: PendingReply) -> None:
        """Note that a client has received a whole reply, so that no request joins it."""
        replies = self._pending[reply.digest]
        if reply in replies:
            replies.remove(reply)
        if not replies:
            del self._pending[reply.digest]

    def divergence(self, lane: str, body: ClientBody) -> dict[str, Any] | None:
        """Describe the first request of an attempt that differs from the recorded ones.

        Returns None if the attempt has differed before.
        """
        if self._has_diverged:
            return None
        self._has_diverged, calls = True, self.calls
        data: dict[str, Any] = {
            "attempt": self.current,
            "position": calls.used,
            "unused": calls.unused,
        }
        for expected in (each for each in calls.every if calls.may_repeat(each, lane)):
            data["fields"] = differences(body, expected, calls.every)
            break
        if lane:
            data["lane"] = lane
        return data

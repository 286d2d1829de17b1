"""The calls that earlier attempts made: matches equal requests to them, and stores conversations.

A call stores only the messages that no earlier call of its conversation has stored.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from caseworker.models.client_bodies import ClientBody
from caseworker.models.message_log import StoredPrompt
from caseworker.models.relay import WIRE, is_recorded

MAX_FIELDS: Final = 20
"""Number of fields that an event names at most."""
SHORT_HASH_CHARS: Final = 6
"""Length of hashes that only serve to show how two requests differ."""


@dataclass(slots=True, kw_only=True)
class RecordedCall:
    """A call that was made for a request, now or in an earlier execution of the run."""

    digest: str
    """Hash of the request."""
    number: int
    """Position among the calls for equal requests, from 1."""
    attempt: int
    """Newest attempt that made or repeated it; 0 for a call that was imported from another run."""
    made_in: int = 0
    """Attempt in which it was made first, if its key contains it."""
    lane: str = ""
    """Name of the lane that made it; empty without one."""
    is_complete: bool = False
    """Whether its result can be replayed."""
    is_open: bool = False
    """Whether it was in flight when an earlier execution ended, or its client disconnected, and it
    was not requested again."""
    place: int = 0
    """Position among all calls of its kind in the run."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """Short hashes of a model's request: of its ``fields``, and of the ``items`` that its
    conversation has in addition to that of the call ``after``. ``root`` is the first call of the
    conversation."""
    answered: Any = None
    """Its result or its task; None if the result must be read from the journal."""

    @property
    def key(self) -> str:
        """Name of the call; unique among the calls of its kind."""
        return f"{self.digest}-{self.number}"


def call_named(key: str, **about: Any) -> RecordedCall:
    """Return the record of a call with this key."""
    digest, _, number = key.rpartition("-")
    return RecordedCall(digest=digest, number=int(number), **about)


def model_calls(context: FlowContext) -> Iterator[RecordedCall]:
    """Yield the model calls of earlier executions of a run."""
    prefix = context.path.call("llm", "").text
    for place, (key, one) in enumerate(context.calls.journal.recorded_below(prefix).items()):
        wire = one.value[WIRE] if one.outcome is CallOutcome.RESULT else {}
        yield call_named(
            key.removeprefix(prefix),
            attempt=0 if one.imported else wire.get("attempt", 0),
            lane=wire.get("lane", ""),
            is_complete=is_recorded(wire),
            is_open=one.outcome is CallOutcome.UNKNOWN,
            place=place,
            content=wire.get("content", {}),
        )


class RecordedCalls:
    """The calls of a run so far.

    A recorded result is used once in each later attempt, in the order of the calls. Without one, a
    call that was in flight when an earlier execution ended is requested again.
    """

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        """Start with the calls of earlier executions."""
        self._calls_by_digest = defaultdict[str, list[RecordedCall]](list)
        earlier = sorted(calls, key=lambda each: each.number)
        for call in earlier:
            self._calls_by_digest[call.digest].append(call)
        self._count = len(earlier)
        self._attempt, self._replays, self._repeatable = 0, False, 0
        self.used = 0
        """Number of recorded results that this attempt has used."""
        self.replayed = 0
        """Number of recorded results that all attempts have used."""
        self._diverged_lanes: set[str] = set()

    def __contains__(self, digest: object) -> bool:
        """Return whether a call was made for a request with this hash."""
        return digest in self._calls_by_digest

    def opened(self, attempt: int, *, replays: bool) -> None:
        """Start the replay again for a new attempt."""
        self._attempt, self._replays, self.used = attempt, replays, 0
        self._repeatable = sum(map(self.may_repeat, self.every)) if replays else 0
        self._diverged_lanes.clear()

    def call_for(
        self,
        digest: str,
        lane: str = "",
        *,
        replays: bool = True,
        diverged: Callable[[], object] = lambda: None,
    ) -> RecordedCall:
        """Return the recorded call that answers a request, or a new one.

        ``diverged`` is called if the record does not contain the request, while recorded results
        are unused. A named lane gets no more recorded results then.
        """
        equal_calls = self._calls_by_digest[digest]
        if self._replays and replays and lane not in self._diverged_lanes:
            call = next((each for each in equal_calls if self.may_repeat(each, lane)), None)
            if call is not None:
                self.used += 1
                self.replayed += 1
                call.attempt, call.is_open = self._attempt, False
                return call
        call = next((each for each in equal_calls if each.is_open), None)
        if call is None:
            may_diverge = replays and self.unused and lane not in self._diverged_lanes
            if not self._supersede_interrupted(equal_calls) and may_diverge:
                diverged()
                if lane:
                    self._diverged_lanes.add(lane)
            call = self._add_call(digest)
        elif self._replays and self.may_repeat(call):  # the request may not be replayed
            self._repeatable -= 1
        call.attempt, call.lane, call.is_open = self._attempt, lane, False
        return call

    def _supersede_interrupted(self, equal_calls: Iterable[RecordedCall]) -> bool:
        """Assign the first call that an earlier attempt left incomplete to this attempt.

        Returns False if there is none.
        """
        for call in equal_calls:
            if call.attempt < self._attempt and not call.is_complete:
                call.attempt = self._attempt
                return True
        return False

    def _add_call(self, digest: str) -> RecordedCall:
        equal_calls, attempt = self._calls_by_digest[digest], self._attempt
        number = equal_calls[-1].number + 1 if equal_calls else 1
        call = RecordedCall(digest=digest, number=number, attempt=attempt, made_in=attempt)
        call.place = self._count = self._count + 1
        equal_calls.append(call)
        return call

    @property
    def unused(self) -> int:
        """Number of recorded results that this attempt has not used."""
        return self._repeatable - self.used

    @property
    def every(self) -> list[RecordedCall]:
        """Every call so far, in order."""
        every = (each for equal_calls in self._calls_by_digest.values() for each in equal_calls)
        return sorted(every, key=lambda each: each.place)

    def may_repeat(self, call: RecordedCall, lane: str | None = None) -> bool:
        """Return whether a call has a result that this attempt has not used."""
        return call.is_complete and call.attempt < self._attempt and lane in (None, call.lane)


class StoredPrompts:
    """The stored conversations of a session, each with the last call that continued it."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[str, str], tuple[StoredPrompt | None, str]] = {}
        """Stored messages and the key of the last call, by lane and hash of the conversation."""

    def continued(
        self, body: ClientBody, entry: RecordedCall, call_key: str
    ) -> tuple[StoredPrompt | None, Callable[[], None]]:
        """Return which messages of a body an earlier call has stored, and describe the request.

        ``call_key`` is the key of the call in the journal. A stored conversation is continued by
        one call, so that its calls are a sequence. The returned function notes that the call has
        stored the other messages.
        """
        *beginnings, conversation = ((entry.lane, each) for each in body.beginnings)
        longest = next((each for each in reversed(beginnings) if each in self._prompts), ("", ""))
        stored, after = self._prompts.pop(longest, (None, ""))
        if not entry.is_complete:
            items = body.item_hashes[beginnings.index(longest) if stored else 0 :]
            entry.content = {
                "fields": _shortened_fields(body.hashes),
                "items": " ".join(map(_shortened, items)),
                "after": after,
                "root": stored.call_key if stored else call_key,
            }

        def note_stored() -> None:
            if entry.attempt and (root := entry.content.get("root")):
                prompt = StoredPrompt(root, len(body.messages), body.hashes)
                self._prompts[conversation] = prompt, entry.key

        return stored, note_stored


def differences(
    body: ClientBody, recorded: RecordedCall, calls: Iterable[RecordedCall]
) -> list[str]:
    """Return the fields of a body that differ from those of a recorded request.

    For the conversation, it is the first message that differs. ``calls`` are all recorded calls.
    """
    fields, now = recorded.content.get("fields", {}), _shortened_fields(body.hashes)
    different = {name for name in fields | now if fields.get(name) != now.get(name)}
    contents = {each.key: each.content for each in calls}
    content, items = recorded.content, list[str]()
    while content:
        items[:0] = content["items"].split()
        content = contents.get(content["after"], {})
    pairs = zip_longest(items, map(_shortened, body.item_hashes))
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return sorted(different)[:MAX_FIELDS] + ([] if at is None else [f"{body.field}[{at}]"])


def _shortened(digest: str) -> str:
    return digest[:SHORT_HASH_CHARS]


def _shortened_fields(hashes: Mapping[str, str]) -> dict[str, str]:
    return {name: _shortened(digest) for name, digest in hashes.items()}

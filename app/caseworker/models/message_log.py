"""An append-only message list, so that each call of a conversation processes only new messages.

With a plain list, every call would hash, measure and store all messages again. The log keeps the
hash state, the size, and the key of the call that stored the conversation so far. The next call
stores only the new messages and the number of messages before them. Messages that are results of
journaled calls are stored as references to those calls.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, overload

from caseworker.models.ports import Message
from caseworker.models.pricing import message_bytes
from caseworker.models.tokens import TextTokens

OF_BRANCH: Final = "of_branch"
"""Field of an entry that names consecutive messages of the branch of a thread: the position of the
first one. ``count`` is their number."""


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """How many messages of a log are already stored, and with which request parameters."""

    call_key: str
    """Key of the call that stored the first messages of the log."""
    messages: int
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """The messages of a call, with their hash state and their estimated tokens."""

    messages: Sequence[Message]
    head: str
    """The text before the messages in the hashed document."""
    hasher: "hashlib._Hash"
    """The hash state after the messages."""
    measured: int
    """Number of messages that ``text`` covers."""
    text: TextTokens


@dataclass(slots=True)
class PromptMemory:
    """Passes the prompt of the first call of a run to the next run of its thread.

    The prompt of that run usually begins with the same messages.
    """

    prompt: KnownPrompt | None = None


class MessageLog(Sequence[Message]):
    """An append-only sequence of messages.

    To drop messages, create a new log from the rest.
    """

    __slots__ = (
        "_hashed",
        "_hashed_head",
        "_hasher",
        "_measured",
        "_memory",
        "_messages",
        "_text",
        "size_bytes",
        "stored",
    )

    def __init__(
        self, messages: Iterable[Message] = (), memory: PromptMemory | None = None
    ) -> None:
        """Create a log with these messages.

        The log continues the prompt in ``memory`` if it begins with the same messages. The first
        call of the log replaces it.
        """
        self._messages: list[Message] = []
        self._hasher = hashlib.sha256()
        self._hashed, self._hashed_head = 0, ""
        self._measured, self._text = 0, TextTokens()
        self._memory = memory
        self.size_bytes = 0
        """The size of all messages in UTF-8 bytes."""
        self.stored: StoredPrompt | None = None
        """None until a call with the log's messages has completed."""
        self.add(*messages)
        prompt = None if memory is None else memory.prompt
        if prompt is not None and self._messages[: len(prompt.messages)] == prompt.messages:
            self._hasher, self._hashed_head = prompt.hasher.copy(), prompt.head
            self._hashed = len(prompt.messages)
            self._measured, self._text = prompt.measured, prompt.text

    def add(self, *messages: Message) -> None:
        """Append messages."""
        self._messages += messages
        self.size_bytes += sum(map(message_bytes, messages))

    def note_stored(self, call_key: str, messages: int, parameters: Mapping[str, Any]) -> None:
        """Record that the first ``messages`` of the log are stored; no effect if more are."""
        stored = self.stored
        if stored is None and self._memory is not None:
            hashed, hasher = self._messages[: self._hashed], self._hasher.copy()
            self._memory.prompt = KnownPrompt(
                hashed, self._hashed_head, hasher, self._measured, self._text
            )
        if stored is None or stored.messages <= messages:
            first = call_key if stored is None else stored.call_key
            self.stored = StoredPrompt(first, messages, parameters)

    def hashed(self, head: str, count: int) -> "hashlib._Hash":
        """Return a SHA-256 hash object over ``head`` and the first ``count`` messages as JSON."""
        if head != self._hashed_head or count < self._hashed:
            self._hasher, self._hashed, self._hashed_head = hashlib.sha256(head.encode()), 0, head
        for at in range(self._hashed, count):
            text = self._messages[at].canonical_json()
            self._hasher.update(f"{', ' if at else ''}{text}".encode())
        self._hashed = count
        return self._hasher.copy()

    @property
    def measured_bytes(self) -> int:
        """Size, in bytes, of the beginning of the messages whose tokens were estimated before."""
        return self._text.size_bytes

    def text(self, count: int) -> TextTokens:
        """Return the estimate of the contents of the first ``count`` messages, one a line."""
        if count < self._measured:
            self._measured, self._text = 0, TextTokens()
        if contents := [message.content for message in self._messages[self._measured : count]]:
            lines = "\n".join(contents)
            text = self._text.followed_by((f"\n{lines}" if self._measured else lines,))
            self._measured, self._text = count, text
        return self._text

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        return self._messages[at]


def stated(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield messages as JSON; consecutive ones that a thread stores are one entry."""

    def shift(numbered: tuple[int, Message]) -> int | None:
        at, message = numbered
        return None if message.branch_index is None else message.branch_index - at

    for stored, group in groupby(enumerate(messages), shift):
        part = [message for _, message in group]
        if stored is None:
            yield from (message.to_json() for message in part)
        else:
            yield {OF_BRANCH: part[0].branch_index, "count": len(part)}

"""The messages of a conversation that only grows, so that each call pays for what it adds.

The hash of a request, the estimate of its tokens and what is stored of it would each read all
messages again with every call. A log remembers how far they were read, and which call has stored
them: the next one stores what is new, says after how many messages of that conversation it stands,
and names the calls whose results are among it instead of repeating them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from caseworker.llm.ports import Message
from caseworker.llm.pricing import message_bytes


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """How much of a log is stored already, and what a further call need not repeat."""

    call_key: str
    """Of the call that has stored the beginning."""
    messages: int
    parameters: Mapping[str, Any]


class MessageLog(Sequence[Message]):
    """Messages that are added to and never changed.

    To leave some out, begin another log with the rest.
    """

    __slots__ = ("_hashed", "_hashed_head", "_hasher", "_messages", "size_bytes", "stored")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """Begin with messages."""
        self._messages: list[Message] = []
        self._hasher = hashlib.sha256()
        self._hashed, self._hashed_head = 0, ""
        self.size_bytes = 0
        """Of all texts, in UTF-8."""
        self.stored: StoredPrompt | None = None
        """None until a call that asked with it has ended."""
        self.add(*messages)

    def add(self, *messages: Message) -> None:
        """Go on."""
        self._messages += messages
        self.size_bytes += sum(map(message_bytes, messages))

    def hashed(self, head: str, count: int) -> "hashlib._Hash":
        """Return a hash that has read ``head`` and the first ``count`` messages as JSON."""
        if head != self._hashed_head or count < self._hashed:
            self._hasher, self._hashed, self._hashed_head = hashlib.sha256(head.encode()), 0, head
        for at in range(self._hashed, count):
            text = message_json(self._messages[at])
            self._hasher.update(f"{', ' if at else ''}{text}".encode())
        self._hashed = count
        return self._hasher.copy()

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        return self._messages[at]


def message_json(message: Message) -> str:
    """Return a message as the hash of a request reads it."""
    said = [message.role, message.content, *filter(None, (message.extras(),))]
    return json.dumps(said, sort_keys=True)

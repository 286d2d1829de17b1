"""Threads: conversations whose messages form a tree, and their store.

Every message except the first has a parent: the message that it follows. Retrying an answer or
editing a message creates a sibling. A branch is the path from a root message to a leaf. An
assistant's message belongs to a run: the run provides its content and its status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import TERMINAL, RunKey, RunStatus


class Role(StrEnum):
    """The author of a message."""

    USER = "user"
    ASSISTANT = "assistant"


class ThreadNotFoundError(LookupError):
    """The thread does not exist or belongs to another tenant."""


class ThreadConflictError(Exception):
    """The id belongs to a thread that another request created."""


class MessageNotFoundError(LookupError):
    """The thread has no such message."""


class AnswerNotEndedError(Exception):
    """The run of an answer is not finished, and the operation requires that."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class ThreadFullError(Exception):
    """The thread has reached its message limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation and the agent or graph that answers in it."""

    tenant: str
    thread_id: str
    kind: DefinitionKind
    definition: Mapping[str, Any]
    """The agent or graph that answers, inline or by name."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Values for the agent's variables, or additional inputs of the graph."""
    tools: Sequence[Any] = ()
    """Additional tools from the user, in the format of an agent's tools."""
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request_hash: str = ""
    created_at: datetime | None = None
    """Set by the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPage:
    """Threads, newest first."""

    threads: Sequence[Thread]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message. For an assistant, ``content`` is the output of its run so far."""

    message_id: str
    parent_id: str | None
    role: Role
    content: str | None = None
    """None if it was not loaded, or if the assistant has produced no text yet."""
    incomplete: str | None = None
    """Why an answer is incomplete, as agents report it; None if it is complete."""
    incomplete_reason: str | None = None
    """Explanation from the provider or the model, such as the text of a refusal."""
    model: str | None = None
    """The model that answered, as named in the provider's reply; None if no model was called."""
    run_id: str | None = None
    """Run of an assistant's message."""
    ends: Sequence[str] = ()
    """The final steps of the run's graph, in order; their outputs form the answer."""
    request_hash: str = ""
    """Hash of the request that created the message."""
    status: RunStatus | None = None
    """Status of the run; None if the run was never accepted or is erased."""
    erased: bool = False
    """Whether the run was erased, and the content with it."""
    created_at: datetime | None = None
    """Set by the store."""

    @property
    def settled(self) -> bool:
        """Whether no run is working on the message."""
        return self.status is None or self.status in TERMINAL


class MessageTree:
    """The messages of a thread, in the order of their creation."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self.messages = messages
        self._by_id = {message.message_id: message for message in messages}
        self._newest_child = {message.parent_id: message for message in messages}

    def get(self, message_id: str) -> ChatMessage:
        """Return a message.

        Raises:
            MessageNotFoundError: the message does not exist.
        """
        try:
            return self._by_id[message_id]
        except KeyError:
            raise MessageNotFoundError(message_id) from None

    def branch_to(self, message_id: str | None) -> list[ChatMessage]:
        """Return the path from the root message to this one, inclusive; empty for None."""
        branch = []
        while message_id is not None:
            message = self.get(message_id)
            branch.append(message)
            message_id = message.parent_id
        return branch[::-1]

    def branch_through(self, message_id: str | None) -> list[ChatMessage]:
        """Return the path through a message to its newest descendant leaf.

        Without a message, return the path to the newest message of the thread.
        """
        if message_id is None and self.messages:
            message_id = self.messages[-1].message_id
        branch = self.branch_to(message_id)
        while branch and branch[-1].message_id in self._newest_child:
            branch.append(self._newest_child[branch[-1].message_id])
        return branch

    def siblings(self, message: ChatMessage) -> list[str]:
        """Return the ids of all messages with the same parent and role, oldest first."""
        return [
            other.message_id
            for other in self.messages
            if (other.parent_id, other.role) == (message.parent_id, message.role)
        ]


class ThreadStore(Protocol):
    """Stores threads and their messages; every method is one transaction."""

    async def create(self, thread: Thread) -> tuple[Thread, bool]:
        """Store a thread; return it and whether it was created (False for a repeated request).

        Raises:
            ThreadConflictError: the id belongs to another thread.
        """
        ...

    async def get(self, tenant: str, thread_id: str) -> Thread | None:
        """Return a thread."""
        ...

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> ThreadPage:
        """Return a page of threads, newest first, without definitions, inputs and tools.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        ...

    async def delete(self, tenant: str, thread_id: str) -> bool:
        """Delete a thread with its messages, but not their runs; return False if not found."""
        ...

    async def add(
        self, tenant: str, thread_id: str, messages: Sequence[ChatMessage], *, most: int
    ) -> bool:
        """Store messages, the last of them an assistant's; return False if they already exist.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            MessageNotFoundError: the parent does not exist.
            IdempotencyMismatchError: a different request created messages with these ids.
            RunConflictError: the run belongs to another message, or was not started by a thread.
            ThreadFullError: the thread would have more than ``most`` messages.
        """
        ...

    async def remove(self, tenant: str, thread_id: str, message_ids: Sequence[str]) -> None:
        """Delete messages whose run was refused."""
        ...

    async def messages(self, tenant: str, thread_id: str) -> Sequence[ChatMessage]:
        """Return all messages of a thread in order, without contents."""
        ...

    async def contents(
        self, tenant: str, thread_id: str, message_ids: Sequence[str], *, models: bool
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return content, incomplete, incomplete_reason and model of messages, by message ID.

        The content of an assistant that has produced no text is None. Without ``models`` the model
        is None, too.
        """
        ...

    async def that_called(
        self, tenant: str, thread_id: str, message_ids: Sequence[str], *, limit: int
    ) -> Sequence[str]:
        """Return the answers whose final step is an agent that called tools, newest first.

        Only answers whose graph has one final step are considered; ``limit`` caps the result.
        """
        ...


def key_of(tenant: str, message: ChatMessage) -> RunKey:
    """Return the key of the run of an assistant's message."""
    return RunKey(tenant, message.run_id or "")

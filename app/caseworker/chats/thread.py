"""Threads: conversations whose messages form a tree, and what stores them.

Every message but the first stands below the one that it follows. Answering a message once more, or
saying it in other words, makes a sibling; a branch is the way from a first message to a last one.
An assistant's message is a run: its content is what the run came to, its status the run's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import TERMINAL, RunKey, RunStatus


class Role(StrEnum):
    """Who says something."""

    USER = "user"
    ASSISTANT = "assistant"


class ThreadNotFoundError(LookupError):
    """There is no such thread, or it belongs to somebody else."""


class ThreadConflictError(Exception):
    """The id belongs to a thread that was made by another request."""


class MessageNotFoundError(LookupError):
    """The thread has no such message."""


class AnswerNotEndedError(Exception):
    """The run of an assistant's message works, and what is asked for needs its end."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class ThreadFullError(Exception):
    """A thread has as many messages as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation, and what answers in it."""

    tenant: str
    thread_id: str
    kind: DefinitionKind
    definition: Mapping[str, Any]
    """The agent or graph that answers, or the name of a registered one."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """For the agent's variables, or more inputs of the graph."""
    tools: Sequence[Any] = ()
    """What the user brings along, as the tools of an agent are named."""
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
    """What somebody has said. Of an assistant it is what its run came to, so far."""

    message_id: str
    parent_id: str | None
    role: Role
    content: str | None = None
    """None where it was not asked for, and of an assistant that has said nothing yet."""
    incomplete: str | None = None
    """Why the content of an answer is not complete, as agents report it; None if it is."""
    incomplete_reason: str | None = None
    """What the provider or the model said about it, such as the text of a refusal."""
    model: str | None = None
    """The model that answered, as its provider names it; None where none has."""
    run_id: str | None = None
    """Of an assistant's message."""
    ends: Sequence[str] = ()
    """The steps at which the graph of the run ends, in order: what they give is the answer."""
    request_hash: str = ""
    """Of the request that has made it."""
    status: RunStatus | None = None
    """Of the run; None if it was never accepted, or is erased."""
    erased: bool = False
    """Whether its run was erased, and what it said with it."""
    created_at: datetime | None = None
    """Set by the store."""

    @property
    def settled(self) -> bool:
        """Whether nothing works on it."""
        return self.status is None or self.status in TERMINAL


class MessageTree:
    """The messages of a thread, in the order in which they came."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self.messages = messages
        self._by_id = {message.message_id: message for message in messages}
        self._newest_child = {message.parent_id: message for message in messages}

    def get(self, message_id: str) -> ChatMessage:
        """Return a message.

        Raises:
            MessageNotFoundError: there is none.
        """
        try:
            return self._by_id[message_id]
        except KeyError:
            raise MessageNotFoundError(message_id) from None

    def branch_to(self, message_id: str | None) -> list[ChatMessage]:
        """Return the way from the first message to one, which is the last; empty for None."""
        branch = []
        while message_id is not None:
            message = self.get(message_id)
            branch.append(message)
            message_id = message.parent_id
        return branch[::-1]

    def branch_through(self, message_id: str | None) -> list[ChatMessage]:
        """Return the way through a message, on to the newest of those that follow it.

        Without one it is the way to the newest message of all.
        """
        if message_id is None and self.messages:
            message_id = self.messages[-1].message_id
        branch = self.branch_to(message_id)
        while branch and branch[-1].message_id in self._newest_child:
            branch.append(self._newest_child[branch[-1].message_id])
        return branch

    def siblings(self, message: ChatMessage) -> list[str]:
        """Return the ids of all that were said at the same place by the same side, oldest first."""
        return [
            other.message_id
            for other in self.messages
            if (other.parent_id, other.role) == (message.parent_id, message.role)
        ]


class ThreadStore(Protocol):
    """Keeps threads and their messages; every method is one transaction."""

    async def create(self, thread: Thread) -> tuple[Thread, bool]:
        """Store a thread, and return it and True; the same once more is False.

        Raises:
            ThreadConflictError: the id belongs to another one.
        """
        ...

    async def get(self, tenant: str, thread_id: str) -> Thread | None:
        """Return a thread."""
        ...

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> ThreadPage:
        """Return a page of threads, newest first, without definitions, inputs and tools.

        Raises:
            InvalidRunError: the cursor is not one of ours.
        """
        ...

    async def delete(self, tenant: str, thread_id: str) -> bool:
        """Delete a thread with its messages, not their runs; False if there is none."""
        ...

    async def add(
        self, tenant: str, thread_id: str, messages: Sequence[ChatMessage], *, most: int
    ) -> bool:
        """Store messages, the last of them an assistant's; False if they are stored already.

        Raises:
            ThreadNotFoundError: there is no such thread.
            MessageNotFoundError: there is no such parent.
            IdempotencyMismatchError: another request has made messages of these ids.
            RunConflictError: the run belongs to another message, or to none.
            ThreadFullError: the thread would have more than ``most`` messages.
        """
        ...

    async def remove(self, tenant: str, thread_id: str, message_ids: Sequence[str]) -> None:
        """Take back messages whose run was refused."""
        ...

    async def messages(self, tenant: str, thread_id: str) -> Sequence[ChatMessage]:
        """Return all messages of a thread in their order, without contents."""
        ...

    async def contents(
        self, tenant: str, thread_id: str, message_ids: Sequence[str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return content, incomplete, incomplete_reason and model of some messages, by id.

        The content of an assistant that has said nothing is None.
        """
        ...

    async def that_called(
        self, tenant: str, thread_id: str, message_ids: Sequence[str], *, limit: int
    ) -> Sequence[str]:
        """Return those of some answers whose last step is an agent that has called tools.

        They are answers whose graph ends at one step; at most ``limit``, the newest first.
        """
        ...


def key_of(tenant: str, message: ChatMessage) -> RunKey:
    """Return the key of the run of an assistant's message."""
    return RunKey(tenant, message.run_id or "")

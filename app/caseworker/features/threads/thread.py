"""Threads: conversations whose messages form a tree, and the store for them.

Every message except the first has a parent: the message that it follows. Retrying an answer or
editing a message creates a sibling. A branch is the path from a root message to a leaf. Each
assistant message belongs to a run, which provides its content and its status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import TERMINAL, RunKey, RunStatus


class Role(StrEnum):
    """Who wrote a message."""

    USER = "user"
    ASSISTANT = "assistant"


class ThreadNotFoundError(LookupError):
    """The thread does not exist or belongs to another tenant."""


class ThreadConflictError(Exception):
    """The ID belongs to a thread that a different request created."""


class MessageNotFoundError(LookupError):
    """The message does not exist in the thread."""


class AnswerNotEndedError(Exception):
    """The operation requires a finished answer, but the answer's run has not ended."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class ThreadChangedError(Exception):
    """A text of the thread was erased after it was read."""


class ThreadFullError(Exception):
    """The thread already has the maximum number of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation and the agent or graph that answers in it."""

    tenant: str
    thread_id: str
    kind: DefinitionKind
    definition: Mapping[str, Any]
    """The agent or graph that answers, either inline or as a reference by name."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Values for the agent's variables, or further inputs of the graph."""
    tools: Sequence[Any] = ()
    """Further tools that the user provides, in the same format as an agent's tools."""
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request_hash: str = ""
    created_at: datetime | None = None
    """Time of creation; None until the store sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadMessage:
    """A message. The ``content`` of an assistant message is the output of its run so far."""

    message_id: str
    parent_id: str | None
    role: Role
    content: str | None = None
    """Text of the message; None if it was not loaded, or if the assistant has written no text
    yet."""
    incomplete: str | None = None
    """Reason code for an incomplete answer, as agents report it; None if the answer is complete."""
    incomplete_reason: str | None = None
    """Explanation by the provider or the model, such as the text of a refusal; None if there is
    none."""
    model: str | None = None
    """Name of the model that answered, from the provider's response; None if no model was
    called."""
    run_id: str | None = None
    """ID of the run that an assistant message belongs to; None for a user message."""
    ends: Sequence[str] = ()
    """IDs of the final steps of the run's graph, in order; their outputs form the answer."""
    request_hash: str = ""
    """Hash of the request that created the message, to detect repeated requests."""
    status: RunStatus | None = None
    """Status of the run; None if the run was never accepted or was erased."""
    erased: bool = False
    """Whether the run was erased, and with it the content of the message."""
    created_at: datetime | None = None
    """Time of creation; None until the store sets it."""

    @property
    def settled(self) -> bool:
        """Whether the message is final, because no run is working on it."""
        return self.status is None or self.status in TERMINAL


class MessageTree:
    """All messages of a thread, in the order of their creation."""

    def __init__(self, messages: Sequence[ThreadMessage]) -> None:
        self.messages = messages
        self._by_id = {message.message_id: message for message in messages}
        self._newest_child = {message.parent_id: message for message in messages}

    def get(self, message_id: str) -> ThreadMessage:
        """Return the message with an ID.

        Raises:
            MessageNotFoundError: the message does not exist.
        """
        try:
            return self._by_id[message_id]
        except KeyError:
            raise MessageNotFoundError(message_id) from None

    def branch_to(self, message_id: str | None) -> list[ThreadMessage]:
        """Return the path from the root message to the given one, inclusive; empty for None."""
        branch = []
        while message_id is not None:
            message = self.get(message_id)
            branch.append(message)
            message_id = message.parent_id
        return branch[::-1]

    def branch_through(self, message_id: str | None) -> list[ThreadMessage]:
        """Return the path from the root through a message to its newest descendant.

        For None, return the path to the newest message of the thread.
        """
        if message_id is None and self.messages:
            message_id = self.messages[-1].message_id
        branch = self.branch_to(message_id)
        while branch and branch[-1].message_id in self._newest_child:
            branch.append(self._newest_child[branch[-1].message_id])
        return branch

    def siblings(self, message: ThreadMessage) -> list[str]:
        """Return the IDs of all messages with the same parent and role, oldest first."""
        return [
            other.message_id
            for other in self.messages
            if (other.parent_id, other.role) == (message.parent_id, message.role)
        ]


def key_of(tenant: str, message: ThreadMessage) -> RunKey:
    """Return the key of the run that an assistant message belongs to."""
    return RunKey(tenant, message.run_id or "")

"""API schemas of threads and messages."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from caseworker.api.field_types import View
from caseworker.api.run_views import CancelReceipt, RunView
from caseworker.features.threads.thread import ChatMessage, MessageTree, Role, Thread, ThreadPage


class ThreadView(View):
    """A conversation, with the agent or graph that answers in it."""

    thread_id: str
    agent: dict[str, Any] | None
    """The agent as it was sent; null if a graph answers, and in lists."""
    graph: dict[str, Any] | None
    """The graph as it was sent; null if an agent answers, and in lists."""
    inputs: dict[str, Any]
    """Empty in lists, like ``tools``."""
    tools: list[Any]
    title: str | None
    metadata: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, thread: Thread) -> Self:
        """Convert a thread."""
        definition = dict(thread.definition) or None
        return cls(
            thread_id=thread.thread_id,
            agent=definition if thread.kind == "agent" else None,
            graph=definition if thread.kind == "graph" else None,
            inputs=dict(thread.inputs),
            tools=list(thread.tools),
            title=thread.title,
            metadata=dict(thread.metadata),
            created_at=thread.created_at,
        )


class ThreadList(View):
    """A page of threads, newest first."""

    threads: list[ThreadView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: ThreadPage) -> Self:
        """Convert a page."""
        views = [ThreadView.of(thread) for thread in page.threads]
        return cls(threads=views, next_cursor=page.next_cursor)


class MessageView(View):
    """A message in a thread."""

    message_id: str
    parent_id: str | None
    """The previous message; null for the first message of a branch."""
    role: Role
    content: str | None
    """For an assistant: the answer of its run so far. Null while empty, and in a whole tree."""
    incomplete: str | None = None
    """Why an answer is incomplete: ``length``, ``content_filter``, ``refusal``, ``empty``,
    ``cancelled``, ``timeout`` or ``error``."""
    incomplete_reason: str | None = None
    """Explanation by the provider or model, such as the text of a refusal."""
    model: str | None = None
    """For an assistant: the model that answered, as named in the provider's reply. Null if no model
    was called, and in a whole tree."""
    status: str | None
    """For an assistant: the status of its run, ``not_started`` if the run was never accepted, or
    ``erased``; the last two can be retried. Null for a user."""
    run_id: str | None
    """The run that creates the answer."""
    siblings: list[str]
    """Messages at the same position in other branches, including itself, oldest first."""
    created_at: datetime | None

    @classmethod
    def of(cls, message: ChatMessage, siblings: Sequence[str]) -> Self:
        """Convert a message."""
        answers = message.role is Role.ASSISTANT
        return cls(
            message_id=message.message_id,
            parent_id=message.parent_id,
            role=message.role,
            content=message.content,
            incomplete=message.incomplete,
            incomplete_reason=message.incomplete_reason,
            model=message.model,
            status=_status_of(message) if answers else None,
            run_id=message.run_id,
            siblings=list(siblings),
            created_at=message.created_at,
        )


def _status_of(message: ChatMessage) -> str:
    return "erased" if message.erased else message.status or "not_started"


class MessageList(View):
    """A branch of a thread, or all messages of the thread."""

    messages: list[MessageView]

    @classmethod
    def of(cls, messages: Sequence[ChatMessage], tree: MessageTree) -> Self:
        """Convert messages of a thread."""
        return cls(messages=[MessageView.of(one, tree.siblings(one)) for one in messages])


class TurnView(View):
    """A user message and its answer, which may be in progress."""

    user: MessageView | None
    """Null if no new user message was sent."""
    assistant: MessageView
    run: RunView
    """The run that creates the answer."""

    @classmethod
    def of(
        cls,
        user: ChatMessage | None,
        assistant: ChatMessage,
        run: RunView,
        tree: MessageTree,
    ) -> Self:
        """Convert a turn in its current state."""
        return cls(
            user=None if user is None else _stored(user, tree),
            assistant=_stored(assistant, tree),
            run=run,
        )


def _stored(message: ChatMessage, tree: MessageTree) -> MessageView:
    """Convert a message, with its stored creation time."""
    stored = tree.get(message.message_id)
    dated = replace(message, created_at=stored.created_at)
    return MessageView.of(dated, tree.siblings(stored))


class CancelledThread(View):
    """The cancelled answers of a thread."""

    thread_id: str
    runs: list[CancelReceipt]

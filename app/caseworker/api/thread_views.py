"""API schemas for threads and messages."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from caseworker.api.field_types import View
from caseworker.api.run_views import CancelReceipt, RunView
from caseworker.features.threads.thread import MessageTree, Role, Thread, ThreadMessage, ThreadPage
from caseworker.nodes.nesting import DefinitionKind


class ThreadView(View):
    """A conversation, with the agent or graph that answers in it."""

    thread_id: str
    agent: dict[str, Any] | None
    """Agent that answers, as it was sent; null if a graph answers, and in lists."""
    graph: dict[str, Any] | None
    """Graph that answers, as it was sent; null if an agent answers, and in lists."""
    inputs: dict[str, Any]
    """Inputs of the agent or graph. Empty in lists, like ``tools``."""
    tools: list[Any]
    title: str | None
    metadata: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, thread: Thread) -> Self:
        """Return the view of a thread."""
        definition = dict(thread.definition) or None
        return cls(
            thread_id=thread.thread_id,
            **{kind: definition if kind is thread.kind else None for kind in DefinitionKind},
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
        """Return the view of a page of threads."""
        views = [ThreadView.of(thread) for thread in page.threads]
        return cls(threads=views, next_cursor=page.next_cursor)


class MessageView(View):
    """A message in a thread, written by a user or by the assistant (the agent or graph)."""

    message_id: str
    parent_id: str | None
    """ID of the previous message; null for the first message of a branch."""
    role: Role
    content: str | None
    """Text of the message; for an assistant, the text written so far. Null if there is no text yet,
    and with ``tree=true``."""
    incomplete: str | None = None
    """Reason why an answer is incomplete: ``length``, ``content_filter``, ``refusal``, ``empty``,
    ``cancelled``, ``timeout`` or ``error``. Null if it is complete."""
    incomplete_reason: str | None = None
    """Explanation by the provider or model, such as the text of a refusal; null if there is
    none."""
    model: str | None = None
    """Model that wrote the answer, as named in the provider's reply. Null if no model was called,
    for a user, and with ``tree=true``."""
    status: str | None
    """Status of the run that creates the answer, ``not_started`` if the run was never accepted, or
    ``erased``. Answers with one of the last two can be retried. Null for a user."""
    run_id: str | None
    """ID of the run that creates the answer; null for a user."""
    siblings: list[str]
    """IDs of the messages at the same position in all branches, including this one, oldest
    first."""
    created_at: datetime | None

    @classmethod
    def of(cls, message: ThreadMessage, siblings: Sequence[str]) -> Self:
        """Return the view of a message.

        ``siblings`` are the message IDs for the field of that name.
        """
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


def _status_of(message: ThreadMessage) -> str:
    return "erased" if message.erased else message.status or "not_started"


class MessageList(View):
    """The messages of one branch of a thread, or of the whole thread."""

    messages: list[MessageView]

    @classmethod
    def of(cls, messages: Sequence[ThreadMessage], tree: MessageTree) -> Self:
        """Return the view of messages of a thread. ``tree`` holds all its messages."""
        return cls(messages=[MessageView.of(one, tree.siblings(one)) for one in messages])


class TurnView(View):
    """A user message and the answer to it, which may still be in progress."""

    user: MessageView | None
    """The user message; null if the request did not send a new one."""
    assistant: MessageView
    run: RunView
    """Run that creates the answer."""

    @classmethod
    def of(
        cls,
        user: ThreadMessage | None,
        assistant: ThreadMessage,
        run: RunView,
        tree: MessageTree,
    ) -> Self:
        """Return the view of a turn in its current state.

        ``tree`` holds all messages of the thread.
        """
        return cls(
            user=None if user is None else _stored(user, tree),
            assistant=_stored(assistant, tree),
            run=run,
        )


def _stored(message: ThreadMessage, tree: MessageTree) -> MessageView:
    """Return the view of a message, with its stored creation time."""
    stored = tree.get(message.message_id)
    dated = replace(message, created_at=stored.created_at)
    return MessageView.of(dated, tree.siblings(stored))


class CancelledThread(View):
    """Receipts for the cancelled answers of a thread."""

    thread_id: str
    runs: list[CancelReceipt]

"""Threads as callers see them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from caseworker.api.field_types import View
from caseworker.api.run_views import CancelReceipt, RunView
from caseworker.chats.thread import ChatMessage, MessageTree, Role, Thread, ThreadPage


class ThreadView(View):
    """A conversation, and what answers in it."""

    thread_id: str
    agent: dict[str, Any] | None
    """What answers, as it was sent; null if a graph does, and in lists."""
    graph: dict[str, Any] | None
    """Likewise."""
    inputs: dict[str, Any]
    """Empty in lists, as are the tools."""
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
            agent=definition if thread.kind == "agent" else None,
            graph=definition if thread.kind == "graph" else None,
            inputs=dict(thread.inputs),
            tools=list(thread.tools),
            title=thread.title,
            metadata=dict(thread.metadata),
            created_at=thread.created_at,
        )


class ThreadList(View):
    """Some threads, newest first."""

    threads: list[ThreadView]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: ThreadPage) -> Self:
        """Return the view of a page."""
        views = [ThreadView.of(thread) for thread in page.threads]
        return cls(threads=views, next_cursor=page.next_cursor)


class MessageView(View):
    """Something that was said."""

    message_id: str
    parent_id: str | None
    """The message that it follows; null of a first one."""
    role: Role
    content: str | None
    """Of an assistant what its run came to, so far. Null while it has said nothing, and where a
    whole tree is shown."""
    incomplete: str | None = None
    """Of an answer that is not complete, why: ``length``, ``content_filter``, ``refusal``,
    ``empty``, ``cancelled``, ``timeout`` or ``error``."""
    incomplete_reason: str | None = None
    """What the provider or the model said about it, such as the text of a refusal."""
    model: str | None = None
    """Of an assistant: the model that answered, as its provider names it in the reply. Null where
    no model has, and where a whole tree is shown."""
    status: str | None
    """Of an assistant: the status of its run, ``not_started`` if that was never accepted, or
    ``erased``; the last two can be retried. Null of a user."""
    run_id: str | None
    """The run that makes the answer."""
    siblings: list[str]
    """The messages at the same place in other branches, itself among them, oldest first."""
    created_at: datetime | None

    @classmethod
    def of(cls, message: ChatMessage, siblings: Sequence[str]) -> Self:
        """Return the view of a message."""
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
    """A branch of a thread, or all of its messages."""

    messages: list[MessageView]

    @classmethod
    def of(cls, messages: Sequence[ChatMessage], tree: MessageTree) -> Self:
        """Return the view of some messages of a thread."""
        return cls(messages=[MessageView.of(one, tree.siblings(one)) for one in messages])


class TurnView(View):
    """What was said, and its answer, which may still be being written."""

    user: MessageView | None
    """Null where nothing new was said."""
    assistant: MessageView
    run: RunView
    """The run that makes the answer."""

    @classmethod
    def of(
        cls,
        user: ChatMessage | None,
        assistant: ChatMessage,
        run: RunView,
        tree: MessageTree,
    ) -> Self:
        """Return the view of a turn whose answer is a run, as both stand now."""
        return cls(
            user=None if user is None else _stored(user, tree),
            assistant=_stored(assistant, tree),
            run=run,
        )


def _stored(message: ChatMessage, tree: MessageTree) -> MessageView:
    """Return the view of a message with what the store knows of it."""
    stored = tree.get(message.message_id)
    dated = replace(message, created_at=stored.created_at)
    return MessageView.of(dated, tree.siblings(stored))


class CancelledThread(View):
    """The answers that are cancelled."""

    thread_id: str
    runs: list[CancelReceipt]

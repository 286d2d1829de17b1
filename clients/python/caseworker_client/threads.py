"""Operations on threads: begin one, say something in it, edit, answer once more, go on, stop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from caseworker_client.events import SILENCE_SECONDS, stream_answer
from caseworker_client.flow import Feed, Flow, Request, ask, fetch
from caseworker_client.models import (
    CancelledThread,
    Event,
    Message,
    MessageList,
    Thread,
    ThreadList,
    Turn,
)
from caseworker_client.runs import posting
from caseworker_client.settings import Settings


class ThreadFields(TypedDict, total=False):
    """What a thread may be given; one of ``agent`` and ``graph`` answers in it."""

    thread_id: str
    """Names the thread; left out, the service makes an id up."""
    agent: Mapping[str, Any]
    """The agent itself, or ``{"name", "version"?}``."""
    graph: Mapping[str, Any]
    """Likewise."""
    inputs: Mapping[str, Any]
    """The values of the agent's variables, or further inputs of the graph."""
    tools: Sequence[str | Mapping[str, Any]]
    """What the user brings along."""
    title: str
    metadata: Mapping[str, Any]


class GoOnFields(TypedDict, total=False):
    """What an answer that goes on may be given."""

    run_id: str
    """Names the run that makes the answer; left out, the service makes an id up."""
    budget: Mapping[str, float | None]
    deadline: str
    """An instant (RFC 3339) after which it is stopped."""
    metadata: Mapping[str, Any]
    """Comes back with the run."""


class AnswerFields(GoOnFields, total=False):
    """What an answer may be given."""

    agent: Mapping[str, Any]
    """Answers this once in place of what the thread was begun with."""
    graph: Mapping[str, Any]
    """Likewise."""
    inputs: Mapping[str, Any]
    seed: int
    timezone: str


class MessageFields(AnswerFields, total=False):
    """What a message may be given."""

    parent_id: str
    """The answer that it follows; left out, the newest."""


def create_thread(settings: Settings, **fields: Unpack[ThreadFields]) -> Flow[Thread]:
    """Begin a thread; the same under the same ``thread_id`` is the thread that there is."""
    request = Request(
        method="POST", path="/threads", json=dict(fields), repeatable="thread_id" in fields
    )
    return (yield from fetch(settings, request, Thread))


def get_thread(settings: Settings, thread_id: str) -> Flow[Thread]:
    """Return a thread, without its messages."""
    return (yield from fetch(settings, Request(method="GET", path=_path(thread_id)), Thread))


def list_threads(
    settings: Settings, *, limit: int = 50, cursor: str | None = None
) -> Flow[ThreadList]:
    """Return a page of threads, newest first, without what answers in them."""
    params = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
    request = Request(method="GET", path="/threads", params=params)
    return (yield from fetch(settings, request, ThreadList))


def delete_thread(settings: Settings, thread_id: str) -> Flow[None]:
    """Delete a thread and its messages; their runs stay."""
    yield from ask(settings, Request(method="DELETE", path=_path(thread_id), repeatable=False))


def list_messages(
    settings: Settings, thread_id: str, *, leaf: str | None = None, tree: bool = False
) -> Flow[list[Message]]:
    """Return the newest branch of a thread, or the one through the message ``leaf``.

    With ``tree`` all messages, in the order in which they came and without contents.
    """
    params = ({} if leaf is None else {"leaf": leaf}) | ({"tree": "true"} if tree else {})
    request = Request(method="GET", path=_path(thread_id, "messages"), params=params)
    return (yield from fetch(settings, request, MessageList)).messages


def send_message(
    settings: Settings,
    thread_id: str,
    content: str,
    *,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[MessageFields],
) -> Flow[Turn]:
    """Say something; wait for the answer for up to ``wait_seconds``.

    It is sent with an idempotency key unless it names its run, so that it is never said twice.
    """
    body = {"content": content, **fields}
    return (
        yield from _turn(
            settings, _path(thread_id, "messages"), body, wait_seconds, idempotency_key
        )
    )


def stream_message(
    settings: Settings,
    thread_id: str,
    content: str,
    *,
    idempotency_key: str | None = None,
    **fields: Unpack[MessageFields],
) -> Feed[Event]:
    """Say something, and yield the events of the run that answers, as ``stream_events`` does.

    To follow an edit, a retry or an answer that goes on: ``stream_events(turn.run.run_id)``.
    """
    body = {"content": content, **fields}
    request = posting(settings, _path(thread_id, "messages"), body, 0, idempotency_key)
    headers = {**request.headers, "Accept": "text/event-stream"}
    yield from stream_answer(
        settings, replace(request, headers=headers, timeout_seconds=SILENCE_SECONDS)
    )


def edit_message(
    settings: Settings,
    thread_id: str,
    message_id: str,
    content: str,
    *,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[AnswerFields],
) -> Flow[Turn]:
    """Say something else in the place of a message of the user, in a branch of its own."""
    path, body = _path(thread_id, "messages", message_id, "edit"), {"content": content, **fields}
    return (yield from _turn(settings, path, body, wait_seconds, idempotency_key))


def retry_message(
    settings: Settings,
    thread_id: str,
    message_id: str,
    *,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[AnswerFields],
) -> Flow[Turn]:
    """Answer once more, beside an answer or to a message of the user, in a branch of its own."""
    path = _path(thread_id, "messages", message_id, "retry")
    return (yield from _turn(settings, path, fields, wait_seconds, idempotency_key))


def continue_message(
    settings: Settings,
    thread_id: str,
    message_id: str,
    *,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[GoOnFields],
) -> Flow[Turn]:
    """Let an answer go on: where it was if it had been stopped, else by another one."""
    path = _path(thread_id, "messages", message_id, "continue")
    return (yield from _turn(settings, path, fields, wait_seconds, idempotency_key))


def cancel_thread(
    settings: Settings, thread_id: str, *, reason: str | None = None
) -> Flow[CancelledThread]:
    """Cancel all answers of a thread that are being written."""
    body = {} if reason is None else {"reason": reason}
    request = Request(method="POST", path=_path(thread_id, "cancel"), json=body)
    return (yield from fetch(settings, request, CancelledThread))


def _turn(
    settings: Settings,
    path: str,
    body: Mapping[str, Any],
    wait_seconds: float,
    idempotency_key: str | None,
) -> Flow[Turn]:
    request = posting(settings, path, body, wait_seconds, idempotency_key)
    return (yield from fetch(settings, request, Turn))


def _path(thread_id: str, *parts: str) -> str:
    return "/".join(["/threads", *(quote(part, safe="") for part in (thread_id, *parts))])

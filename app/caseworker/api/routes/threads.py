"""Routes for threads: create, send, edit, retry, continue, cancel and read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Query, Response

from caseworker.api import problem_types as types
from caseworker.api.api_request import ApiRequest, api_router
from caseworker.api.documentation import (
    EVENT_STREAM,
    EVERY_BODY,
    EVERY_RUN_ROUTE,
    RUN_HEADERS,
    Responses,
    answers,
)
from caseworker.api.event_stream import EVENT_HEADERS, last_event_id
from caseworker.api.field_types import PageQuery
from caseworker.api.problems import rate_headers
from caseworker.api.routes.events import stream_of
from caseworker.api.routes.runs import answer_of, awaited, shown
from caseworker.api.run_body import POST_HEADERS, idempotency_key, wait_seconds
from caseworker.api.run_views import CancelReceipt, Links
from caseworker.api.thread_admission import hash_of
from caseworker.api.thread_body import (
    AnswerBody,
    CancelThreadBody,
    EditBody,
    GoOnBody,
    MessageBody,
    MessageIdPath,
    MessagesQuery,
    NewThreadBody,
    ThreadIdPath,
)
from caseworker.api.thread_views import (
    CancelledThread,
    MessageList,
    ThreadList,
    ThreadView,
    TurnView,
)
from caseworker.features.threads.service import PlannedReply, StoredReply
from caseworker.features.threads.thread import AnswerNotEndedError, Thread, ThreadNotFoundError
from caseworker.runs.errors import IdempotencyMismatchError
from caseworker.runs.run import NewRun, RunKey

router = api_router("threads", prefix="/threads")

_FOUND = answers(*EVERY_RUN_ROUTE, types.THREAD_NOT_FOUND)
_MESSAGES_FOUND = answers(*EVERY_RUN_ROUTE, types.THREAD_NOT_FOUND, types.MESSAGE_NOT_FOUND)
_ANSWERED: Responses = {
    **answers(
        *EVERY_RUN_ROUTE,
        *EVERY_BODY,
        types.THREAD_NOT_FOUND,
        types.MESSAGE_NOT_FOUND,
        types.ANSWER_NOT_ENDED,
        types.THREAD_FULL,
        types.RUN_CONFLICT,
        types.IDEMPOTENCY_MISMATCH,
        types.QUEUE_FULL,
        types.QUOTA_EXCEEDED,
        types.TOO_MANY_STREAMS,
    ),
    200: {
        "description": "The run ended within the wait time, or had already been accepted. With "
        "`Accept: text/event-stream`, the events of the run until it ends.",
        "model": TurnView,
        "headers": RUN_HEADERS,
        "content": {"text/event-stream": EVENT_STREAM},
    },
    202: {
        "description": "Accepted. The messages and the run are stored durably.",
        "model": TurnView,
        "headers": RUN_HEADERS,
    },
}
_ANSWERING: dict[str, Any] = {
    "status_code": HTTPStatus.ACCEPTED,
    "response_model": TurnView,
    "responses": _ANSWERED,
    "openapi_extra": {"parameters": [*POST_HEADERS, *EVENT_HEADERS]},
}
_NOTHING_MORE = AnswerBody()
_AS_IT_WAS = GoOnBody()
_NO_REASON = CancelThreadBody()

NextTurn = Callable[[Thread], Awaitable[PlannedReply]]


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses={
        **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, types.THREAD_CONFLICT, types.QUOTA_EXCEEDED),
        200: {"description": "The thread already exists.", "model": ThreadView},
    },
)
async def begin_thread(body: NewThreadBody, request: ApiRequest, response: Response) -> ThreadView:
    """Create a thread in which an agent or a graph answers.

    Repeating a request with the same `thread_id` returns the existing thread.
    """
    api = request.api
    thread = await api.thread_runs.new_thread(body, request.caller.tenant)
    stored, created = await api.chats.store.create(thread)
    response.headers["Location"] = f"{request.root}/threads/{stored.thread_id}"
    if not created:
        response.status_code = HTTPStatus.OK
    return ThreadView.of(stored)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_threads(query: Annotated[PageQuery, Query()], request: ApiRequest) -> ThreadList:
    """List threads, newest first, without their agents and graphs."""
    store = request.api.chats.store
    page = await store.find(request.caller.tenant, limit=query.limit, cursor=query.cursor)
    return ThreadList.of(page)


@router.get("/{thread_id}", responses=_FOUND)
async def get_thread(thread_id: ThreadIdPath, request: ApiRequest) -> ThreadView:
    """Return a thread, without its messages."""
    return ThreadView.of(await request.api.chats.thread(request.caller.tenant, thread_id))


@router.delete(
    "/{thread_id}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **_FOUND,
        204: {"description": "The thread and its messages were deleted. Its runs are kept."},
    },
)
async def delete_thread(thread_id: ThreadIdPath, request: ApiRequest) -> None:
    """Delete a thread and its messages. Active runs continue; cancel them first."""
    if not await request.api.chats.store.delete(request.caller.tenant, thread_id):
        raise ThreadNotFoundError(thread_id)


@router.get("/{thread_id}/messages", responses=_MESSAGES_FOUND)
async def list_messages(
    thread_id: ThreadIdPath, query: Annotated[MessagesQuery, Query()], request: ApiRequest
) -> MessageList:
    """Return a branch of a thread, by default the newest, from its first message on.

    Answers in progress contain the text written so far.
    """
    chats = request.api.chats
    thread = await chats.thread(request.caller.tenant, thread_id)
    tree = await chats.tree(thread)
    if query.tree:
        return MessageList.of(tree.messages, tree)
    branch = await chats.with_contents(thread, tree.branch_through(query.leaf), models=True)
    return MessageList.of(branch, tree)


@router.post("/{thread_id}/messages", **_ANSWERING)
async def send_message(thread_id: ThreadIdPath, body: MessageBody, request: ApiRequest) -> Response:
    """Send a user message; a run answers it.

    With `Accept: text/event-stream`, the response streams the events of the run.
    """

    async def turn(thread: Thread) -> PlannedReply:
        return await request.api.chats.saying(thread, body.content, body.parent_id)

    return await _Action(request, "send", None, body, turn).answer(thread_id)


@router.post("/{thread_id}/messages/{message_id}/edit", **_ANSWERING)
async def edit_message(
    thread_id: ThreadIdPath, message_id: MessageIdPath, body: EditBody, request: ApiRequest
) -> Response:
    """Replace a user message with another one, in a new branch.

    The original message and its answers remain in their branch.
    """

    async def turn(thread: Thread) -> PlannedReply:
        return await request.api.chats.editing(thread, message_id, body.content)

    return await _Action(request, "edit", message_id, body, turn).answer(thread_id)


@router.post("/{thread_id}/messages/{message_id}/retry", **_ANSWERING)
async def retry_message(
    thread_id: ThreadIdPath,
    message_id: MessageIdPath,
    request: ApiRequest,
    body: AnswerBody = _NOTHING_MORE,
) -> Response:
    """Answer a user message again, or replace an answer, in a new branch."""

    async def turn(thread: Thread) -> PlannedReply:
        return await request.api.chats.retrying(thread, message_id)

    return await _Action(request, "retry", message_id, body, turn).answer(thread_id)


@router.post("/{thread_id}/messages/{message_id}/continue", **_ANSWERING)
async def continue_message(
    thread_id: ThreadIdPath,
    message_id: MessageIdPath,
    request: ApiRequest,
    body: GoOnBody = _AS_IT_WAS,
) -> Response:
    """Continue an answer.

    An answer that was halted, cancelled or failed is resumed in a sibling answer, which imports the
    work done by its run. A completed answer is followed by another one.
    """

    async def turn(thread: Thread) -> PlannedReply:
        return await request.api.chats.continuing(thread, message_id)

    return await _Action(request, "continue", message_id, body, turn).answer(thread_id)


@router.post(
    "/{thread_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        **answers(
            *EVERY_RUN_ROUTE, *EVERY_BODY, types.THREAD_NOT_FOUND, types.TOO_MANY_PENDING_CANCELS
        ),
        202: {
            "description": "The cancel requests are stored, even for runs that do not exist yet."
        },
    },
)
async def cancel_thread(
    thread_id: ThreadIdPath, request: ApiRequest, body: CancelThreadBody = _NO_REASON
) -> CancelledThread:
    """Cancel all answers of a thread that are in progress."""
    request.require_small()
    chats, caller = request.api.chats, request.caller
    thread = await chats.thread(caller.tenant, thread_id)
    stopped = await chats.stop(thread, by=caller.name, reason=body.reason)
    return CancelledThread(thread_id=thread_id, runs=[CancelReceipt.of(one) for one in stopped])


@dataclass(frozen=True, slots=True)
class _Action:
    """A request that creates an answer."""

    request: ApiRequest
    name: str
    message_id: str | None
    body: GoOnBody
    turn: NextTurn

    async def answer(self, thread_id: str) -> Response:
        """Store the messages, accept the run, and return both or the event stream."""
        if "text/event-stream" in self.request.headers.get("accept", ""):
            return await self._stream(thread_id)
        request, chats = self.request, self.request.api.chats
        wait = wait_seconds(request.headers, longest=request.limits.max_wait_seconds)
        thread, answered = await self._answered(thread_id)
        run = await awaited(request.runs, answered.accepted.run, wait)
        tree = await chats.tree(thread)
        answer = replace(tree.get(answered.assistant.message_id), status=run.status)
        if run.finished:
            [answer] = await chats.with_contents(thread, [answer], models=True)
        view = TurnView.of(answered.user, answer, await shown(run, request), tree)
        accepted = answered.accepted
        return answer_of(view, view.run.links, accepted, ended=run.finished, wait=wait)

    async def _stream(self, thread_id: str) -> Response:
        """Return the event stream of the run; a repeated request continues after Last-Event-ID."""
        request = self.request
        after = last_event_id(request.headers) or 0
        await request.api.streams.enter(request.caller.tenant, request.scope)
        _, answered = await self._answered(thread_id)
        run_id = answered.accepted.run.key.run_id
        stream = await stream_of(run_id, request, after=after)
        stream.headers["Location"] = Links.of(run_id, request.root).self
        stream.headers.update(rate_headers(answered.accepted.rate))
        return stream

    async def _answered(self, thread_id: str) -> tuple[Thread, StoredReply]:
        request, body = self.request, self.body
        thread = await request.api.chats.thread(request.caller.tenant, thread_id)
        chats, admission = request.api.chats, request.api.thread_runs
        key = idempotency_key(request.headers)
        run_key = RunKey(thread.tenant, admission.run_id(thread, body, key))
        hashed = hash_of(self.name, self.message_id, body)
        if body.run_id is None and key is None:
            return thread, await self._made(thread, None, run_key, hashed)
        known = await chats.earlier(thread, run_key.run_id, hashed)
        if isinstance(known, StoredReply):
            return thread, known
        try:
            return thread, await self._made(thread, known, run_key, hashed)
        except (AnswerNotEndedError, IdempotencyMismatchError):
            known = await chats.earlier(thread, run_key.run_id, hashed)
            if not isinstance(known, StoredReply):
                raise
            return thread, known  # a concurrent duplicate was stored first

    async def _made(
        self, thread: Thread, turn: PlannedReply | None, run_key: RunKey, hashed: str
    ) -> StoredReply:
        turn = turn or await self.turn(thread)
        new, ends = await self._new_run(thread, turn, run_key, hashed)
        return await self.request.api.chats.answer(thread, turn, new, ends)

    async def _new_run(
        self, thread: Thread, turn: PlannedReply, key: RunKey, hashed: str
    ) -> tuple[NewRun, list[str]]:
        api, body = self.request.api, self.body
        if turn.goes_on is not None:
            source = await api.chats.source(thread, turn.goes_on)
            new = api.thread_runs.going_on(source, body, key, hashed)
            return new, list(turn.goes_on.ends)
        if not isinstance(body, AnswerBody):
            named = ("budget", "deadline", "metadata")
            body = AnswerBody.model_construct(**{name: getattr(body, name) for name in named})
        new, ends = await api.thread_runs.new_run(thread, turn, body, key, hashed)
        return new, list(ends)

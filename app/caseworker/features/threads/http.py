"""Routes for threads: create, send, edit, retry, continue, cancel and read."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import Path, Query, Response

from caseworker.features.threads.admission import (
    AnswerBody,
    EditBody,
    GoOnBody,
    MessageBody,
    NewThreadBody,
    ThreadAdmission,
    thread_request_hash,
)
from caseworker.features.threads.postgres.threads import ThreadPosition
from caseworker.features.threads.service import Chats, PlannedReply, StoredReply
from caseworker.features.threads.thread import (
    AnswerNotEndedError,
    MessageNotFoundError,
    MessageTree,
    Role,
    Thread,
    ThreadChangedError,
    ThreadConflictError,
    ThreadFullError,
    ThreadMessage,
    ThreadNotFoundError,
)
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.bodies import BodyModel, PageQuery, QueryModel, Reason, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import Errors, ProblemError, ProblemType, Violation
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.runs.errors import IdempotencyMismatchError
from caseworker.runs.http.body import (
    POST_HEADERS,
    RUN_HEADERS,
    idempotency_key,
    wait_seconds,
    wants_stream,
)
from caseworker.runs.http.events import EVENT_HEADERS, EVENT_STREAM, stream_accepted
from caseworker.runs.http.fields import MessageId, ThreadId
from caseworker.runs.http.kinds import RunView
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.http.problems import (
    IDEMPOTENCY_MISMATCH,
    QUEUE_FULL,
    QUOTA_EXCEEDED,
    RUN_CONFLICT,
    TOO_MANY_PENDING_CANCELS,
    TOO_MANY_STREAMS,
)
from caseworker.runs.http.runs import answer_of, awaited, view_with_usage
from caseworker.runs.http.views import CancelReceipt
from caseworker.runs.ports import Accepted
from caseworker.runs.run import NewRun, RunKey
from caseworker.runs.service import new_run_id

THREAD_NOT_FOUND = ProblemType(
    slug="thread-not-found",
    status=404,
    title="Thread not found",
    detail="No thread has this ID. GET /threads lists all threads.",
    explanation="No thread has this ID, or the thread belongs to another tenant.",
)
MESSAGE_NOT_FOUND = ProblemType(
    slug="message-not-found",
    status=404,
    title="Message not found",
    detail=(
        "The thread has no message with this ID. GET /threads/{thread_id}/messages?tree=true "
        "lists all messages."
    ),
    explanation="The thread has no message with this ID. `GET "
    "/threads/{thread_id}/messages?tree=true` lists all messages.",
)
THREAD_CONFLICT = ProblemType(
    slug="thread-conflict",
    status=409,
    title="Thread ID already used for a different request",
    detail="Use another thread_id, or repeat the original request unchanged.",
    explanation="The `thread_id` belongs to a thread that was created with another body. Choose "
    "another ID, or repeat the original request unchanged.",
)
THREAD_FULL = ProblemType(
    slug="thread-full",
    status=409,
    title="Thread is full",
    detail="Start a new thread.",
    explanation="The thread has 5,000 messages, the maximum. Create another thread.",
)
ANSWER_NOT_ENDED = ProblemType(
    slug="answer-not-ended",
    status=409,
    title="Answer is still in progress",
    detail="Wait until its run ends or cancel the run, then repeat the request.",
    explanation="The answer to continue or to reply to is still in progress. Wait for the end "
    "of its run, or cancel it, and send the request again.",
)

_STILL = "This message is still being generated."

ERRORS: Errors = {
    ThreadNotFoundError: THREAD_NOT_FOUND,
    MessageNotFoundError: MESSAGE_NOT_FOUND,
    ThreadConflictError: THREAD_CONFLICT,
    ThreadFullError: THREAD_FULL,
    AnswerNotEndedError: lambda error: ProblemError(
        ANSWER_NOT_ENDED, violations=[Violation(error.field, _STILL)]
    ),
}
PROBLEMS = (ANSWER_NOT_ENDED,)


ThreadIdPath = Annotated[ThreadId, Path(description="ID of the thread.")]
MessageIdPath = Annotated[MessageId, Path(description="ID of the message.")]


class CancelThreadBody(BodyModel):
    """Options for cancelling the answers of a thread."""

    reason: Reason | None = None
    """Reason for cancelling the answers, shown in the receipts and in the traces."""


class MessagesQuery(QueryModel):
    """Query parameters that select messages of a thread."""

    leaf: MessageId | None = None
    """ID of a message in the branch to return. The branch continues to the newest message after it.
    Defaults to the branch of the newest message of the thread."""
    tree: bool = False
    """Whether to return all messages of the thread in chronological order, without contents."""


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
        either = {kind: definition if kind is thread.kind else None for kind in DefinitionKind}
        return cls.of_parts(thread, **either)


class ThreadList(View):
    """A page of threads, newest first."""

    threads: list[ThreadView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


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

        ``siblings`` are the IDs of all messages with the same parent, including this one.
        """
        status = None
        if message.role is Role.ASSISTANT:
            status = "erased" if message.erased else message.status or "not_started"
        return cls.of_parts(message, status=status, siblings=siblings)


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


class CancelledThread(View):
    """Receipts for the cancelled answers of a thread."""

    thread_id: str
    runs: list[CancelReceipt]


router = api_router("threads", prefix="/threads")

_RESPONSES_OF_ONE = answers(*EVERY_RUN_ROUTE, THREAD_NOT_FOUND)
_MESSAGES_FOUND = answers(*EVERY_RUN_ROUTE, THREAD_NOT_FOUND, MESSAGE_NOT_FOUND)
_ANSWERED: Responses = {
    **answers(
        *EVERY_RUN_ROUTE,
        *EVERY_BODY,
        THREAD_NOT_FOUND,
        MESSAGE_NOT_FOUND,
        ANSWER_NOT_ENDED,
        THREAD_FULL,
        RUN_CONFLICT,
        IDEMPOTENCY_MISMATCH,
        QUEUE_FULL,
        QUOTA_EXCEEDED,
        TOO_MANY_STREAMS,
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

NextTurn = Callable[[Thread, ThreadPosition], Awaitable[PlannedReply]]


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses={
        **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, THREAD_CONFLICT, QUOTA_EXCEEDED),
        200: {"description": "The thread already exists.", "model": ThreadView},
    },
)
async def begin_thread(body: NewThreadBody, request: ApiRequest, response: Response) -> ThreadView:
    """Create a thread in which an agent or a graph answers.

    Repeating a request with the same `thread_id` returns the existing thread.
    """
    thread = await request.service(ThreadAdmission).new_thread(body, request.caller.tenant)
    stored, created = await request.service(Chats).store.create(thread)
    response.headers["Location"] = f"{request.root}/threads/{stored.thread_id}"
    if not created:
        response.status_code = HTTPStatus.OK
    return ThreadView.of(stored)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_threads(query: Annotated[PageQuery, Query()], request: ApiRequest) -> ThreadList:
    """List threads, newest first, without their agents and graphs."""
    store = request.service(Chats).store
    page = await store.find(request.caller.tenant, limit=query.limit, cursor=query.cursor)
    views = [ThreadView.of(thread) for thread in page.items]
    return ThreadList(threads=views, next_cursor=page.next_cursor)


@router.get("/{thread_id}", responses=_RESPONSES_OF_ONE)
async def get_thread(thread_id: ThreadIdPath, request: ApiRequest) -> ThreadView:
    """Return a thread, without its messages."""
    return ThreadView.of(await request.service(Chats).thread(request.caller.tenant, thread_id))


@router.delete(
    "/{thread_id}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **_RESPONSES_OF_ONE,
        204: {"description": "The thread and its messages were deleted. Its runs are kept."},
    },
)
async def delete_thread(thread_id: ThreadIdPath, request: ApiRequest) -> None:
    """Delete a thread and its messages. Active runs continue; cancel them first."""
    if not await request.service(Chats).store.delete(request.caller.tenant, thread_id):
        raise ThreadNotFoundError(thread_id)


@router.get("/{thread_id}/messages", responses=_MESSAGES_FOUND)
async def list_messages(
    thread_id: ThreadIdPath, query: Annotated[MessagesQuery, Query()], request: ApiRequest
) -> MessageList:
    """Return a branch of a thread, by default the newest, from its first message on.

    Answers in progress contain the text written so far.
    """
    chats = request.service(Chats)
    thread = await chats.thread(request.caller.tenant, thread_id)
    tree = await chats.tree(thread)
    if query.tree:
        return MessageList.of(tree.messages, tree)
    branch = await chats.with_contents(thread, tree.branch_through(query.leaf))
    return MessageList.of(branch, tree)


@router.post("/{thread_id}/messages", **_ANSWERING)
async def send_message(thread_id: ThreadIdPath, body: MessageBody, request: ApiRequest) -> Response:
    """Send a user message; a run answers it.

    With `Accept: text/event-stream`, the response streams the events of the run.
    """
    saying = request.service(Chats).saying
    turn = partial(saying, content=body.content, parent_id=body.parent_id)
    return await _Action(request, "send", None, body, turn, body.parent_id).answer(thread_id)


@router.post("/{thread_id}/messages/{message_id}/edit", **_ANSWERING)
async def edit_message(
    thread_id: ThreadIdPath, message_id: MessageIdPath, body: EditBody, request: ApiRequest
) -> Response:
    """Replace a user message with another one, in a new branch.

    The original message and its answers remain in their branch.
    """
    turn = partial(request.service(Chats).editing, message_id=message_id, content=body.content)
    return await _Action(request, "edit", message_id, body, turn, message_id).answer(thread_id)


@router.post("/{thread_id}/messages/{message_id}/retry", **_ANSWERING)
async def retry_message(
    thread_id: ThreadIdPath,
    message_id: MessageIdPath,
    request: ApiRequest,
    body: AnswerBody = _NOTHING_MORE,
) -> Response:
    """Answer a user message again, or replace an answer, in a new branch."""
    turn = partial(request.service(Chats).retrying, message_id=message_id)
    return await _Action(request, "retry", message_id, body, turn, message_id).answer(thread_id)


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
    turn = partial(request.service(Chats).continuing, message_id=message_id)
    return await _Action(request, "continue", message_id, body, turn, message_id).answer(thread_id)


@router.post(
    "/{thread_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, THREAD_NOT_FOUND, TOO_MANY_PENDING_CANCELS),
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
    chats, caller = request.service(Chats), request.caller
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
    at: str | None
    """ID of the message that the request is about; None for the newest message of the thread."""

    async def answer(self, thread_id: str) -> Response:
        """Store the messages, accept the run, and return both or the event stream."""
        if wants_stream(self.request.headers):
            return await stream_accepted(partial(self._accept, thread_id), self.request)
        request, chats = self.request, self.request.service(Chats)
        wait = wait_seconds(request.headers, longest=request.service(ApiLimits).max_wait_seconds)
        thread, answered = await self._answered(thread_id)
        run = await awaited(request, answered.accepted.run, wait)
        *user, assistant = await chats.displayed(thread, answered, run)
        view = TurnView(
            user=MessageView.of(*user[0]) if user else None,
            assistant=MessageView.of(*assistant),
            run=await view_with_usage(run, request),
        )
        accepted = answered.accepted
        return answer_of(view, view.run.links, accepted, ended=run.finished, wait=wait)

    async def _accept(self, thread_id: str) -> Accepted:
        return (await self._answered(thread_id))[1].accepted

    async def _answered(self, thread_id: str) -> tuple[Thread, StoredReply]:
        request, body, tenant = self.request, self.body, self.request.caller.tenant
        chats, admission = request.service(Chats), request.service(ThreadAdmission)
        if isinstance(body, MessageBody) and body.parent_id is None and self._is_new:
            planned = chats.remembered(tenant, thread_id, body.content)
            if planned is not None:
                with suppress(ThreadChangedError):
                    return planned[0], await self._stored_new(*planned)
        thread, place = await chats.place(tenant, thread_id, self.at)
        if self._is_new:
            return thread, await self._stored_new(thread, await self.turn(thread, place))
        key = idempotency_key(request.headers)
        run_key = RunKey(thread.tenant, admission.run_id(thread, body, key))
        hashed = thread_request_hash(self.name, self.message_id, body)
        earlier = await chats.earlier(thread, run_key.run_id, hashed)
        if isinstance(earlier, StoredReply):
            return thread, earlier
        try:
            turn = earlier or await self.turn(thread, place)
            return thread, await self._store(thread, turn, run_key, hashed)
        except (AnswerNotEndedError, IdempotencyMismatchError):
            earlier = await chats.earlier(thread, run_key.run_id, hashed)
            if not isinstance(earlier, StoredReply):
                raise
            return thread, earlier  # a concurrent duplicate was stored first

    @property
    def _is_new(self) -> bool:
        """Whether no earlier request can have been the same one."""
        return self.body.run_id is None and idempotency_key(self.request.headers) is None

    async def _stored_new(self, thread: Thread, turn: PlannedReply) -> StoredReply:
        hashed = thread_request_hash(self.name, self.message_id, self.body)
        return await self._store(thread, turn, RunKey(thread.tenant, new_run_id()), hashed)

    async def _store(
        self, thread: Thread, turn: PlannedReply, run_key: RunKey, hashed: str
    ) -> StoredReply:
        new, ends = await self._new_run(thread, turn, run_key, hashed)
        return await self.request.service(Chats).answer(thread, turn, new, ends)

    async def _new_run(
        self, thread: Thread, turn: PlannedReply, key: RunKey, hashed: str
    ) -> tuple[NewRun, list[str]]:
        request, body = self.request, self.body
        chats, admission = request.service(Chats), request.service(ThreadAdmission)
        if turn.resumed_answer is not None:
            source = await chats.source(thread, turn.resumed_answer)
            new = admission.continued_run(source, body, key, hashed)
            return new, list(turn.resumed_answer.ends)
        if not isinstance(body, AnswerBody):
            names = ("budget", "deadline", "metadata")
            body = AnswerBody.model_construct(**{name: getattr(body, name) for name in names})
        new, ends = await admission.new_run(thread, turn, body, key, hashed)
        return new, list(ends)

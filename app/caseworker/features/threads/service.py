"""Thread operations for callers. Each answer in a thread is an ordinary run.

The transaction that accepts a run stores its messages, so a running answer always has its message.
Repeating a request under the same ID finds both. The previous release stores the messages before
the run. A message whose run was never accepted has no status; it can be retried.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from caseworker.engine.supervision import shielded
from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.memory import KnownBranch, ThreadVersion, numbered
from caseworker.features.threads.postgres.threads import (
    PostgresThreads,
    ThreadPosition,
    reply_rows,
    storage_refusal_of,
)
from caseworker.features.threads.thread import (
    AnswerNotEndedError,
    MessageNotFoundError,
    MessageTree,
    Role,
    Thread,
    ThreadChangedError,
    ThreadMessage,
    ThreadNotFoundError,
    key_of,
)
from caseworker.models.ports import Message
from caseworker.nodes.agent.definition import MAX_MESSAGES
from caseworker.nodes.chat import ChatInput
from caseworker.runs.errors import IdempotencyMismatchError, InvalidRunError
from caseworker.runs.ports import Accepted, CancelStatus
from caseworker.runs.references import is_stored_unchanged
from caseworker.runs.run import TERMINAL, NewRun, Run, RunStatus
from caseworker.runs.service import ACCEPT_GRACE_SECONDS, RunService

MAX_THREAD_MESSAGES = 5000

_IDS = uuid.UUID("8d2f0f0e-6c8a-5f0e-9a55-0f6f2b0f6f31")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReply:
    """An answer that is not stored yet, and the new user message that it answers, if any."""

    parent_id: str | None
    """ID of the message that the new messages follow; None at the start of a branch."""
    content: str | None = None
    """Text of the new user message; None creates only an answer."""
    question: str
    """Text of the message to answer."""
    history: Sequence[Message] | None = None
    """Messages that the model receives, ending with the message to answer. None if they are
    unknown. Then the whole thread is smaller than the limits of a branch."""
    state: ThreadVersion | None = None
    """State of the thread in which ``history`` is known; None without a history."""
    newest: str | None = None
    """ID of the newest message of the thread, if the plan is only valid as long as it is."""
    without: Sequence[str] = ()
    """IDs of the answers in the branch that have no text yet."""
    resumed_answer: ThreadMessage | None = None
    """The interrupted answer that the new run resumes; None if it resumes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """A stored answer with its run, and the new user message that it answers, if any."""

    user: ThreadMessage | None
    assistant: ThreadMessage
    accepted: Accepted
    is_first: bool = False
    """Whether this request stored the messages, and nothing followed the message before them."""


class Chats:
    """Stores the messages of threads, and starts the runs that answer them."""

    def __init__(
        self, store: PostgresThreads, runs: RunService, *, max_branch_bytes: int = 0
    ) -> None:
        """A branch is not read to measure it if its thread has at most ``max_branch_bytes``."""
        self.store = store
        self._runs = runs
        self._max_branch_bytes = max_branch_bytes

    async def thread(self, tenant: str, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            ThreadNotFoundError: the thread does not exist.
        """
        stored = await self.store.get(tenant, thread_id)
        if stored is None:
            raise ThreadNotFoundError(thread_id)
        return stored

    async def place(
        self, tenant: str, thread_id: str, message_id: str | None
    ) -> tuple[Thread, ThreadPosition]:
        """Return a thread with the place of a message, or of the newest one for None.

        Raises:
            ThreadNotFoundError: the thread does not exist.
        """
        stored = await self.store.place(tenant, thread_id, message_id)
        if stored is None:
            raise ThreadNotFoundError(thread_id)
        return stored

    async def tree(self, thread: Thread) -> MessageTree:
        """Return all messages of a thread, without contents."""
        return MessageTree(await self.store.messages(thread.tenant, thread.thread_id))

    async def with_contents(
        self, thread: Thread, messages: Sequence[ThreadMessage]
    ) -> list[ThreadMessage]:
        """Return messages with their contents and models."""
        ids = [message.message_id for message in messages]
        contents = await self.store.contents(thread.tenant, thread.thread_id, ids)
        return [replace(one, **contents.get(one.message_id, {})) for one in messages]

    async def displayed(
        self, thread: Thread, reply: StoredReply, run: Run
    ) -> list[tuple[ThreadMessage, Sequence[str]]]:
        """Return the messages of a reply, each with the IDs of its siblings and its own.

        ``run`` is the current state of its run. Messages that this process stored first have no
        siblings. It reads them only if it does not know the answer.

        Raises:
            MessageNotFoundError: a message was deleted.
        """
        assistant = replace(reply.assistant, status=run.status, created_at=run.created_at)
        answer = StoredAnswer.of_run(run, assistant.ends)
        if not reply.is_first or (run.finished and answer is None):
            return await self._stored(thread, [reply.user, assistant])
        if answer is not None:
            assistant = replace(assistant, **answer.displayed)
            self._note_answer(thread, assistant, answer)
        user = reply.user and replace(reply.user, created_at=run.created_at)
        return [(one, [one.message_id]) for one in (user, assistant) if one is not None]

    async def _stored(
        self, thread: Thread, messages: Sequence[ThreadMessage | None]
    ) -> list[tuple[ThreadMessage, Sequence[str]]]:
        present = [message for message in messages if message is not None]
        ids = [message.message_id for message in present]
        displayed = await self.store.displayed(thread.tenant, thread.thread_id, ids)
        if missing := [one for one in ids if one not in displayed]:
            raise MessageNotFoundError(missing[0])
        stored = [dict(displayed[one]) for one in ids]
        siblings = [one.pop("siblings") for one in stored]
        for message, one in zip(present, stored, strict=True):
            if (answer := one.pop("answer")) is not None:
                self._note_answer(thread, message, answer)
        with_fields = [replace(one, **more) for one, more in zip(present, stored, strict=True)]
        return list(zip(with_fields, siblings, strict=True))

    def _note_answer(self, thread: Thread, message: ThreadMessage, answer: StoredAnswer) -> None:
        memory = self.store.branches.memory
        memory.note_answer(thread, message.parent_id, message.message_id, answer)

    async def saying(
        self, thread: Thread, place: ThreadPosition, *, content: str, parent_id: str | None
    ) -> PlannedReply:
        """Plan the answer to a new user message.

        ``place`` is that of the message ``parent_id``; for None, that of the newest message, which
        the new one follows.

        Raises:
            MessageNotFoundError: the parent does not exist.
            InvalidRunError: the parent is a user message.
            AnswerNotEndedError: the parent is an answer that is still being written.
        """
        if place.message is None and parent_id is not None:
            raise MessageNotFoundError(parent_id)
        if place.message is not None and place.message.role is Role.USER:
            message = "This is a user message. Answer, edit or retry it instead."
            raise InvalidRunError("parent_id", message)
        leaf = None if place.message is None else place.message.message_id
        planned = self._from_memory(thread, place, content)
        return planned or await self._planned_reply(thread, place, leaf, content)

    def remembered(
        self, tenant: str, thread_id: str, content: str
    ) -> tuple[Thread, PlannedReply] | None:
        """Plan the answer to a new message without reading the thread, if this process knows it.

        To store the answer fails if the thread has changed.
        """
        branch = self.store.branches.memory.answered(tenant, thread_id)
        history = None if branch is None else branch.followed_by(branch.answer, content)
        if branch is None or branch.thread is None or history is None:
            return None
        plan = PlannedReply(
            parent_id=branch.answer_id,
            content=content,
            question=content,
            history=history,
            state=branch.state,
            without=branch.without,
            newest=branch.answer_id,
        )
        return branch.thread, plan

    def _from_memory(
        self, thread: Thread, place: ThreadPosition, content: str
    ) -> PlannedReply | None:
        """Plan the answer to a new message, if this process knows the messages before it."""
        parent, state = place.message, place.state
        branch: KnownBranch | None = KnownBranch(state, None)
        if parent is not None:
            if place.answer is None or not parent.settled:
                return None
            memory = self.store.branches.memory
            branch = memory.branch(thread.tenant, thread.thread_id, state, parent.parent_id)
        history = None if branch is None else branch.followed_by(place.answer, content)
        if branch is None or history is None:
            return None
        return PlannedReply(
            parent_id=None if parent is None else parent.message_id,
            content=content,
            question=content,
            history=history,
            state=state,
            without=branch.without,
        )

    async def editing(
        self, thread: Thread, place: ThreadPosition, *, message_id: str, content: str
    ) -> PlannedReply:
        """Plan the answer to a copy of a user message with changed ``content``.

        ``place`` is that of the message.

        Raises:
            MessageNotFoundError: the message does not exist.
            InvalidRunError: the message is not a user message.
        """
        if place.message is None:
            raise MessageNotFoundError(message_id)
        if place.message.role is not Role.USER:
            raise InvalidRunError("message_id", "Only user messages can be edited.")
        return await self._planned_reply(thread, place, place.message.parent_id, content)

    async def retrying(
        self, thread: Thread, place: ThreadPosition, *, message_id: str
    ) -> PlannedReply:
        """Plan a new answer to a user message, given by its ID or the ID of an existing answer.

        Raises:
            MessageNotFoundError: the message does not exist.
            AnswerNotEndedError: an answer in the branch is still being written.
        """
        tree = await self.tree(thread)
        message = tree.get(message_id)
        question_id = message_id if message.role is Role.USER else message.parent_id
        return await self._planned(thread, tree, question_id, state=place.state)

    async def continuing(
        self, thread: Thread, place: ThreadPosition, *, message_id: str
    ) -> PlannedReply:
        """Plan the continuation of an answer.

        If the answer was interrupted, a sibling message resumes it. If it was complete, a further
        answer follows it. If it never started, it is retried.

        Raises:
            MessageNotFoundError: the message does not exist.
            InvalidRunError: the message is not an answer.
            AnswerNotEndedError: the answer is still being written.
        """
        tree = await self.tree(thread)
        message = tree.get(message_id)
        if message.role is not Role.ASSISTANT:
            raise InvalidRunError(
                "message_id",
                "Only assistant messages can be resumed. Use retry to answer a user message.",
            )
        if not message.settled:
            raise AnswerNotEndedError("message_id")
        if message.status is RunStatus.COMPLETED:
            return await self._planned(thread, tree, message_id, state=place.state)
        turn = await self.retrying(thread, place, message_id=message_id)
        return turn if message.status is None else replace(turn, resumed_answer=message)

    async def earlier(
        self, thread: Thread, run_id: str, request_hash: str
    ) -> "StoredReply | PlannedReply | None":
        """Return the answer that an identical earlier request created; None if the request is new.

        If the run of that answer was never accepted, return the answer as planned, to store it
        again.

        Raises:
            IdempotencyMismatchError: a different request created the message.
        """
        message_id = derived_id(thread.thread_id, run_id, Role.ASSISTANT)
        if not await self.store.has(thread.tenant, thread.thread_id, message_id):
            return None
        tree = await self.tree(thread)
        with suppress(MessageNotFoundError):
            message = tree.get(message_id)
            if message.request_hash != request_hash:
                raise IdempotencyMismatchError
            parent = None if message.parent_id is None else tree.get(message.parent_id)
            user = None
            if parent is not None and parent.request_hash == request_hash:
                [user] = await self.with_contents(thread, [parent])
            if message.status is not None:
                run = await self.source(thread, message)
                return StoredReply(
                    user=user, assistant=message, accepted=Accepted(run, created=False)
                )
            planned = await self._planned(thread, tree, message.parent_id)
            if user is None:
                return planned
            return replace(planned, parent_id=user.parent_id, content=user.content)
        return None

    async def source(self, thread: Thread, message: ThreadMessage) -> Run:
        """Return the run that produced an answer."""
        return await self._runs.get(key_of(thread.tenant, message))

    async def answer(
        self, thread: Thread, turn: PlannedReply, new: NewRun, ends: Sequence[str]
    ) -> StoredReply:
        """Store a planned answer and accept its run, even if the caller disconnects.

        ``ends`` contains the IDs of the final steps of the run's graph.

        Raises:
            RunConflictError: the run's ID belongs to another request.
            IdempotencyMismatchError: the message IDs belong to another request.
            ThreadNotFoundError, MessageNotFoundError: the thread or parent was deleted in the
                meantime.
            ThreadFullError: the thread has reached its message limit.
            ThreadChangedError: ``turn`` was planned without reading the thread, which has changed.
        """
        work = self._answer(thread, turn, new, ends)
        return await shielded(work, grace_seconds=ACCEPT_GRACE_SECONDS)

    async def stop(self, thread: Thread, *, by: str, reason: str | None) -> Sequence[CancelStatus]:
        """Cancel all unfinished answers, including those whose run has not been accepted yet."""
        return [
            await self._runs.cancel(key_of(thread.tenant, message), by=by, reason=reason)
            for message in (await self.tree(thread)).messages
            if message.run_id is not None and not message.erased and message.status not in TERMINAL
        ]

    async def _planned_reply(
        self, thread: Thread, place: ThreadPosition, parent_id: str | None, content: str
    ) -> PlannedReply:
        size = place.bytes + len(content.encode())
        if place.complete and place.messages < MAX_MESSAGES and size <= self._max_branch_bytes:
            return PlannedReply(parent_id=parent_id, content=content, question=content)
        tree = await self.tree(thread)
        planned = await self._planned(thread, tree, parent_id, content, state=place.state)
        return replace(planned, content=content)

    async def _planned(
        self,
        thread: Thread,
        tree: MessageTree,
        leaf: str | None,
        content: str | None = None,
        *,
        state: ThreadVersion | None = None,
    ) -> PlannedReply:
        """Plan an answer to the message ``leaf``, or to a new message ``content`` after it."""
        if not all(message.settled for message in tree.branch_to(leaf)):
            raise AnswerNotEndedError("parent_id")
        branch = await self.store.branches.read(thread.tenant, thread.thread_id, leaf)
        if content is not None:
            new = ThreadMessage(message_id="", parent_id=leaf, role=Role.USER, content=content)
            branch = replace(branch, messages=[*branch.messages, new])
        without = branch.unanswered
        history = branch.history(without)
        return PlannedReply(
            parent_id=leaf,
            question=history[-1].content,
            history=history,
            state=state,
            without=without,
        )

    async def _answer(
        self, thread: Thread, turn: PlannedReply, new: NewRun, ends: Sequence[str]
    ) -> StoredReply:
        user, assistant = _messages(thread, turn, new, ends)
        rows = reply_rows([assistant] if user is None else [user, assistant])
        # The statement that accepts the run also stores these rows: a crash leaves both or neither,
        # and a repeated request finds both.
        reply: dict[str, Any] = {"messages": rows, "limit": MAX_THREAD_MESSAGES}
        chat = replace(cast("ChatInput", new.request.chat), reply=reply)
        if turn.resumed_answer is None:
            chat = replace(chat, leaf=assistant.parent_id, without=tuple(turn.without))
            is_read_back = turn.content is None or is_stored_unchanged(turn.content)
            if turn.state is not None and turn.history is not None and is_read_back:
                reply["erasures"] = turn.state.erasures
                memory = self.store.branches.memory.prompt_memory(
                    thread.tenant, thread.thread_id, turn.state
                )
                chat = replace(chat, messages=numbered(turn.history), memory=memory)
            if turn.newest is not None:
                reply["newest"] = turn.newest
        try:
            accepted = await self._runs.accept(_with_chat(new, chat))
        except Exception as error:
            if (refusal := storage_refusal_of(error)) is None:
                raise
            if not isinstance(refusal, ThreadChangedError):
                raise refusal from None
            self.store.branches.memory.forget_answer(thread)
            if turn.newest is not None:
                raise refusal from None
            # A text was erased after the branch was read; the run reads what is left of it.
            del reply["erasures"]
            accepted = await self._runs.accept(_with_chat(new, replace(chat, messages=())))
        else:
            if accepted.created and chat.messages and turn.state is not None:
                self.store.branches.memory.remember(thread.tenant, chat, turn.state, thread)
        assistant = replace(assistant, status=accepted.run.status)
        is_first = accepted.created and turn.newest is not None
        return StoredReply(user=user, assistant=assistant, accepted=accepted, is_first=is_first)


def _with_chat(new: NewRun, chat: ChatInput) -> NewRun:
    return replace(new, request=replace(new.request, chat=chat))


def derived_id(*parts: str) -> str:
    """Derive an ID from ``parts``, so that a repeated request gets the same ID."""
    return str(uuid.uuid5(_IDS, "\n".join(parts)))


def _messages(
    thread: Thread, turn: PlannedReply, new: NewRun, ends: Sequence[str]
) -> tuple[ThreadMessage | None, ThreadMessage]:
    run_id, parent_id, user = new.key.run_id, turn.parent_id, None
    if turn.content is not None:
        parent_id = derived_id(thread.thread_id, run_id, Role.USER)
        user = ThreadMessage(
            message_id=parent_id,
            parent_id=turn.parent_id,
            role=Role.USER,
            content=turn.content,
            request_hash=new.request_hash,
        )
    assistant = ThreadMessage(
        message_id=derived_id(thread.thread_id, run_id, Role.ASSISTANT),
        parent_id=parent_id,
        role=Role.ASSISTANT,
        run_id=run_id,
        ends=ends,
        request_hash=new.request_hash,
    )
    return user, assistant

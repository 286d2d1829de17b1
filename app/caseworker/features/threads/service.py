"""Thread operations for callers. Each answer in a thread is an ordinary run.

Messages are stored with the run's ID before the run is accepted. Repeating a request under the same
ID finds its messages and its run, and completes a request that was interrupted in between. A
running answer therefore always has its message. A message whose run was never accepted has no
status; it can be retried.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from caseworker.engine.supervision import shielded
from caseworker.features.threads.history import (
    GO_ON,
    MAX_ANSWERS_WITH_CALLS,
    MAX_CALL_BYTES,
    calls_of,
    size_of,
    spoken,
)
from caseworker.features.threads.postgres import PostgresThreads
from caseworker.features.threads.thread import (
    AnswerNotEndedError,
    MessageNotFoundError,
    MessageTree,
    Role,
    Thread,
    ThreadMessage,
    ThreadNotFoundError,
    key_of,
)
from caseworker.models.ports import Message
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.errors import IdempotencyMismatchError, InvalidRunError, RunNotFoundError
from caseworker.runs.ports import Accepted, CancelStatus
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
    history: Sequence[Message]
    """Messages that the model receives, ending with the message to answer."""
    goes_on: ThreadMessage | None = None
    """The interrupted answer that the new run resumes; None if it resumes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """A stored answer with its run, and the new user message that it answers, if any."""

    user: ThreadMessage | None
    assistant: ThreadMessage
    accepted: Accepted


class Chats:
    """Stores the messages of threads, and starts the runs that answer them."""

    def __init__(self, store: PostgresThreads, runs: RunService) -> None:
        self.store = store
        self._runs = runs

    async def thread(self, tenant: str, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            ThreadNotFoundError: the thread does not exist.
        """
        found = await self.store.get(tenant, thread_id)
        if found is None:
            raise ThreadNotFoundError(thread_id)
        return found

    async def tree(self, thread: Thread) -> MessageTree:
        """Return all messages of a thread, without contents."""
        return MessageTree(await self.store.messages(thread.tenant, thread.thread_id))

    async def with_contents(
        self, thread: Thread, messages: Sequence[ThreadMessage], *, models: bool = False
    ) -> list[ThreadMessage]:
        """Return messages with their contents, and with their models if ``models`` is set.

        The models are read from the journals of the runs, which is slow if a journal is long.
        """
        wanted = [message.message_id for message in messages]
        where = thread.tenant, thread.thread_id
        said = await self.store.contents(*where, wanted, models=models)
        return [replace(one, **said.get(one.message_id, {})) for one in messages]

    async def saying(self, thread: Thread, content: str, parent_id: str | None) -> PlannedReply:
        """Plan the answer to a new user message.

        Without ``parent_id``, the message follows the newest message of the thread.

        Raises:
            MessageNotFoundError: the parent does not exist.
            InvalidRunError: the parent is a user message.
            AnswerNotEndedError: the parent is an answer that is still being written.
        """
        tree = await self.tree(thread)
        branch = tree.branch_to(parent_id) if parent_id else tree.branch_through(None)
        if branch and branch[-1].role is Role.USER:
            message = "This is a user message. Answer, edit or retry it instead."
            raise InvalidRunError("parent_id", message)
        return await self._said(thread, branch, content)

    async def editing(self, thread: Thread, message_id: str, content: str) -> PlannedReply:
        """Plan the answer to a copy of a user message with changed ``content``.

        Raises the errors of :meth:`saying`.
        """
        tree = await self.tree(thread)
        message = tree.get(message_id)
        if message.role is not Role.USER:
            raise InvalidRunError("message_id", "Only user messages can be edited.")
        return await self._said(thread, tree.branch_to(message.parent_id), content)

    async def retrying(self, thread: Thread, message_id: str) -> PlannedReply:
        """Plan a new answer to a user message, given by its ID or the ID of an existing answer.

        Raises:
            MessageNotFoundError: the message does not exist.
            AnswerNotEndedError: an answer in the branch is still being written.
        """
        tree = await self.tree(thread)
        message = tree.get(message_id)
        asked = message_id if message.role is Role.USER else message.parent_id
        branch = tree.branch_to(asked)
        return PlannedReply(parent_id=asked, history=await self._history(thread, branch))

    async def continuing(self, thread: Thread, message_id: str) -> PlannedReply:
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
            branch = tree.branch_to(message_id)
            return PlannedReply(parent_id=message_id, history=await self._history(thread, branch))
        turn = await self.retrying(thread, message_id)
        return turn if message.status is None else replace(turn, goes_on=message)

    async def earlier(
        self, thread: Thread, run_id: str, request_hash: str
    ) -> "StoredReply | PlannedReply | None":
        """Return the answer that an identical earlier request created; None if the request is new.

        If the run of that answer was never accepted, return the answer as planned, to store it
        again.

        Raises:
            IdempotencyMismatchError: a different request created the message.
        """
        tree = await self.tree(thread)
        message_id = derived_id(thread.thread_id, run_id, Role.ASSISTANT)
        with suppress(MessageNotFoundError):
            message = tree.get(message_id)
            if message.request_hash != request_hash:
                raise IdempotencyMismatchError
            branch = await self.with_contents(thread, tree.branch_to(message.parent_id))
            user = branch[-1] if branch and branch[-1].request_hash == request_hash else None
            if message.status is not None:
                run = await self.source(thread, message)
                return StoredReply(
                    user=user, assistant=message, accepted=Accepted(run, created=False)
                )
            history = await self._history(thread, branch)
            if user is None:
                return PlannedReply(parent_id=message.parent_id, history=history)
            return PlannedReply(parent_id=user.parent_id, content=user.content, history=history)
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

    async def _said(
        self, thread: Thread, branch: Sequence[ThreadMessage], content: str
    ) -> PlannedReply:
        history = await self._history(thread, branch, asked=content)
        parent_id = branch[-1].message_id if branch else None
        return PlannedReply(parent_id=parent_id, content=content, history=history)

    async def _history(
        self, thread: Thread, branch: Sequence[ThreadMessage], asked: str | None = None
    ) -> Sequence[Message]:
        if not all(message.settled for message in branch):
            raise AnswerNotEndedError("parent_id")
        calls = await self._calls(thread, branch)
        said = list(spoken(await self.with_contents(thread, branch), calls))
        if asked is None and (not said or said[-1].role != "user"):
            asked = GO_ON
        return said if asked is None else [*said, Message(role="user", content=asked)]

    async def _calls(
        self, thread: Thread, branch: Sequence[ThreadMessage]
    ) -> Mapping[str, Sequence[Message]]:
        """Return the tool calls behind the newest answers of a branch, by message id."""
        where = thread.tenant, thread.thread_id
        found: dict[str, Sequence[Message]] = {}
        answers = {one.message_id: one for one in branch if len(one.ends) == 1}
        if not answers:
            return found
        called = await self.store.that_called(*where, list(answers), limit=MAX_ANSWERS_WITH_CALLS)
        left = MAX_CALL_BYTES
        for message_id in called:
            message = answers[message_id]
            with suppress(RunNotFoundError):
                calls = calls_of(await self.source(thread, message), message.ends[0])
                left -= size_of(calls)
                if left < 0:
                    break
                found[message_id] = calls
        return found

    async def _answer(
        self, thread: Thread, turn: PlannedReply, new: NewRun, ends: Sequence[str]
    ) -> StoredReply:
        where = thread.tenant, thread.thread_id
        user, assistant = _messages(thread, turn, new, ends)
        both = [assistant] if user is None else [user, assistant]
        fresh = await self.store.add(*where, both, most=MAX_THREAD_MESSAGES)
        try:
            accepted = await self._runs.accept(new)
        except StoreUnavailableError:
            raise  # the run may have been accepted: repeating the request finds out
        except Exception:
            if fresh:
                with suppress(StoreUnavailableError):
                    await self.store.remove(*where, [one.message_id for one in both])
            raise
        assistant = replace(assistant, status=accepted.run.status)
        return StoredReply(user=user, assistant=assistant, accepted=accepted)


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

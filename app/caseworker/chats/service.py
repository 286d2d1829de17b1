"""What callers can ask of threads: every answer is an ordinary run.

Messages are stored before their run is accepted, with the run's id. So a request that is repeated
under the same id finds its messages and its run, one that was cut off in between is completed by
repeating it, and a run that works always has its message. A message whose run never came has no
status; it can be answered once more.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from caseworker.chats.history import (
    GO_ON,
    MAX_ANSWERS_WITH_CALLS,
    MAX_CALL_BYTES,
    calls_of,
    size_of,
    spoken,
)
from caseworker.chats.thread import (
    AnswerNotEndedError,
    ChatMessage,
    MessageNotFoundError,
    MessageTree,
    Role,
    Thread,
    ThreadNotFoundError,
    ThreadStore,
    key_of,
)
from caseworker.engine.supervision import shielded
from caseworker.llm.ports import Message
from caseworker.runs.errors import (
    IdempotencyMismatchError,
    InvalidRunError,
    RunNotFoundError,
    StoreUnavailableError,
)
from caseworker.runs.ports import Accepted, CancelStatus
from caseworker.runs.run import TERMINAL, NewRun, Run, RunStatus
from caseworker.runs.service import ACCEPT_GRACE_SECONDS, RunService

MAX_THREAD_MESSAGES = 5000

_IDS = uuid.UUID("8d2f0f0e-6c8a-5f0e-9a55-0f6f2b0f6f31")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An answer that is to be made, and the message that it answers if that is new."""

    parent_id: str | None
    """What the new messages follow."""
    content: str | None = None
    """What the user says; None makes an answer alone."""
    history: Sequence[Message]
    """The branch as the assistant is to see it, what the user says now at its end."""
    goes_on: ChatMessage | None = None
    """The answer whose run goes on in that of the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a turn."""

    user: ChatMessage | None
    assistant: ChatMessage
    accepted: Accepted


class Chats:
    """Threads, their branches and their answers."""

    def __init__(self, store: ThreadStore, runs: RunService) -> None:
        self.store = store
        self._runs = runs

    async def thread(self, tenant: str, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            ThreadNotFoundError: there is none.
        """
        found = await self.store.get(tenant, thread_id)
        if found is None:
            raise ThreadNotFoundError(thread_id)
        return found

    async def tree(self, thread: Thread) -> MessageTree:
        """Return the messages of a thread, without contents."""
        return MessageTree(await self.store.messages(thread.tenant, thread.thread_id))

    async def with_contents(
        self, thread: Thread, messages: Sequence[ChatMessage]
    ) -> list[ChatMessage]:
        """Return messages with what they say."""
        wanted = [message.message_id for message in messages]
        said = await self.store.contents(thread.tenant, thread.thread_id, wanted)
        return [replace(one, **said.get(one.message_id, {})) for one in messages]

    async def saying(self, thread: Thread, content: str, parent_id: str | None) -> Turn:
        """Return the turn in which the user says something, at the end of the newest branch.

        Raises:
            MessageNotFoundError: there is no such parent.
            InvalidRunError: the parent is a message of the user.
            AnswerNotEndedError: the parent is still being written.
        """
        tree = await self.tree(thread)
        branch = tree.branch_to(parent_id) if parent_id else tree.branch_through(None)
        if branch and branch[-1].role is Role.USER:
            message = "This is a user message. Answer, edit or retry it instead."
            raise InvalidRunError("parent_id", message)
        return await self._said(thread, branch, content)

    async def editing(self, thread: Thread, message_id: str, content: str) -> Turn:
        """Return the turn in which the user says something in other words; raises likewise."""
        tree = await self.tree(thread)
        message = tree.get(message_id)
        if message.role is not Role.USER:
            raise InvalidRunError("message_id", "Only user messages can be edited.")
        return await self._said(thread, tree.branch_to(message.parent_id), content)

    async def retrying(self, thread: Thread, message_id: str) -> Turn:
        """Return the turn in which something is answered once more, an answer or a question.

        Raises:
            MessageNotFoundError: there is no such message.
            AnswerNotEndedError: an answer on the way there is still being written.
        """
        tree = await self.tree(thread)
        message = tree.get(message_id)
        asked = message_id if message.role is Role.USER else message.parent_id
        branch = tree.branch_to(asked)
        return Turn(parent_id=asked, history=await self._history(thread, branch))

    async def continuing(self, thread: Thread, message_id: str) -> Turn:
        """Return the turn in which an answer goes on.

        One that was cut off goes on where it was, beside it; one that had come to its end is
        followed by another; one that was never begun is begun.

        Raises:
            MessageNotFoundError: there is no such message.
            InvalidRunError: it is no answer.
            AnswerNotEndedError: it is still being written.
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
            return Turn(parent_id=message_id, history=await self._history(thread, branch))
        turn = await self.retrying(thread, message_id)
        return turn if message.status is None else replace(turn, goes_on=message)

    async def earlier(
        self, thread: Thread, run_id: str, request_hash: str
    ) -> "Answered | Turn | None":
        """Return what the same request made before: an answer, or the turn if that has no run.

        Raises:
            IdempotencyMismatchError: another request has made it.
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
                return Answered(user=user, assistant=message, accepted=Accepted(run, created=False))
            history = await self._history(thread, branch)
            if user is None:
                return Turn(parent_id=message.parent_id, history=history)
            return Turn(parent_id=user.parent_id, content=user.content, history=history)
        return None

    async def source(self, thread: Thread, message: ChatMessage) -> Run:
        """Return the run of an answer."""
        return await self._runs.get(key_of(thread.tenant, message))

    async def answer(
        self, thread: Thread, turn: Turn, new: NewRun, ends: Sequence[str]
    ) -> Answered:
        """Store the messages of a turn and accept its run; whole even if the caller hangs up.

        Raises:
            RunConflictError: the run's id belongs to something else.
            IdempotencyMismatchError: the ids belong to another turn.
            ThreadNotFoundError, MessageNotFoundError: it was deleted meanwhile.
            ThreadFullError: the thread takes no more messages.
        """
        work = self._answer(thread, turn, new, ends)
        return await shielded(work, grace_seconds=ACCEPT_GRACE_SECONDS)

    async def stop(self, thread: Thread, *, by: str, reason: str | None) -> Sequence[CancelStatus]:
        """Cancel all answers that are being written, also those whose run is still to come."""
        return [
            await self._runs.cancel(key_of(thread.tenant, message), by=by, reason=reason)
            for message in (await self.tree(thread)).messages
            if message.run_id is not None and not message.erased and message.status not in TERMINAL
        ]

    async def _said(self, thread: Thread, branch: Sequence[ChatMessage], content: str) -> Turn:
        history = await self._history(thread, branch, asked=content)
        parent_id = branch[-1].message_id if branch else None
        return Turn(parent_id=parent_id, content=content, history=history)

    async def _history(
        self, thread: Thread, branch: Sequence[ChatMessage], asked: str | None = None
    ) -> Sequence[Message]:
        if not all(message.settled for message in branch):
            raise AnswerNotEndedError("parent_id")
        calls = await self._calls(thread, branch)
        said = list(spoken(await self.with_contents(thread, branch), calls))
        if asked is None and (not said or said[-1].role != "user"):
            asked = GO_ON
        return said if asked is None else [*said, Message(role="user", content=asked)]

    async def _calls(
        self, thread: Thread, branch: Sequence[ChatMessage]
    ) -> Mapping[str, Sequence[Message]]:
        """Return the calls of tools behind the newest answers of a branch, by their messages."""
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
        self, thread: Thread, turn: Turn, new: NewRun, ends: Sequence[str]
    ) -> Answered:
        where = thread.tenant, thread.thread_id
        user, assistant = _messages(thread, turn, new, ends)
        both = [assistant] if user is None else [user, assistant]
        fresh = await self.store.add(*where, both, most=MAX_THREAD_MESSAGES)
        try:
            accepted = await self._runs.accept(new)
        except StoreUnavailableError:
            raise  # it may have been accepted: repeating the request tells
        except Exception:
            if fresh:
                with suppress(StoreUnavailableError):
                    await self.store.remove(*where, [one.message_id for one in both])
            raise
        assistant = replace(assistant, status=accepted.run.status)
        return Answered(user=user, assistant=assistant, accepted=accepted)


def derived_id(*parts: str) -> str:
    """Return an id that is the same for the same request."""
    return str(uuid.uuid5(_IDS, "\n".join(parts)))


def _messages(
    thread: Thread, turn: Turn, new: NewRun, ends: Sequence[str]
) -> tuple[ChatMessage | None, ChatMessage]:
    run_id, parent_id, user = new.key.run_id, turn.parent_id, None
    if turn.content is not None:
        parent_id = derived_id(thread.thread_id, run_id, Role.USER)
        user = ChatMessage(
            message_id=parent_id,
            parent_id=turn.parent_id,
            role=Role.USER,
            content=turn.content,
            request_hash=new.request_hash,
        )
    assistant = ChatMessage(
        message_id=derived_id(thread.thread_id, run_id, Role.ASSISTANT),
        parent_id=parent_id,
        role=Role.ASSISTANT,
        run_id=run_id,
        ends=ends,
        request_hash=new.request_hash,
    )
    return user, assistant

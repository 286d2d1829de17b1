"""The branches of threads as runs receive them.

A run that answers stores only the ID of the last message of its branch. The messages are read when
it is executed, again after the loss of its process. They must be the same then, because a recorded
call is repeated if its prompt has changed. Texts of messages never change. If a message is erased
or deleted, a trigger keeps it for the unfinished runs that need it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.history import history_of
from caseworker.features.threads.thread import Role, ThreadMessage
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput
from caseworker.platform.postgres.engines import Engines, read_rows, transaction
from caseworker.runs.errors import BranchNotFoundError
from caseworker.runs.run import Run

BRANCH = "SELECT * FROM caseworker_branch(%s, %s, %s, %s)"
"""Return the messages from the root of a thread to a leaf, as a run must see them."""

LEAF_OF = """
SELECT coalesce(
    (SELECT parent_id FROM messages WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s),
    (SELECT request #>> '{chat,leaf}' FROM runs
        WHERE tenant_id = %(tenant)s AND run_id = %(source)s)
) AS leaf
"""
"""Return the leaf of a run that the previous release forked, which dropped it from the request."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The messages from the root of a thread to a leaf, with contents."""

    messages: Sequence[ThreadMessage]
    answers: Mapping[str, StoredAnswer]
    """Stored answers by message ID."""

    def history(self, without: Sequence[str] = ()) -> list[Message]:
        """Return the messages for a model. The last one is from the user.

        ``without`` are the IDs of answers that stay out.
        """
        kept = [one for one in self.messages if one.message_id not in without]
        return history_of(kept, self.answers)

    @property
    def unanswered(self) -> list[str]:
        """IDs of the answers that are not stored: their runs never started, or were erased."""
        return [
            one.message_id
            for one in self.messages
            if one.role is Role.ASSISTANT and one.message_id not in self.answers
        ]


class PostgresBranches:
    """Reads branches for runs; see :class:`caseworker.runs.ports.Branches`."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    async def chat_of(self, run: Run) -> ChatInput:
        """Return the chat of a run with its messages, the same for each execution of the run.

        Raises:
            BranchNotFoundError: the thread or the message to answer was deleted before the run was
                first executed.
        """
        chat = _chat(run)
        leaf = chat.leaf or await self._leaf_of(run)
        branch = await self.read(run.key.tenant, chat.thread_id, leaf, run.key.run_id)
        if not branch.messages:
            raise BranchNotFoundError
        return replace(chat, messages=_numbered(branch.history(chat.without)))

    async def shown_for(self, run: Run) -> Sequence[Message]:
        """Return the messages of a run's chat that still exist, in order."""
        chat = _chat(run)
        if chat.messages:
            return chat.messages
        leaf = chat.leaf or await self._leaf_of(run)
        of_run = None if run.finished else run.key.run_id
        branch = await self.read(run.key.tenant, chat.thread_id, leaf, of_run)
        return branch.history(chat.without) if branch.messages else ()

    async def read(
        self, tenant: str, thread_id: str, leaf: str | None, run_id: str | None = None
    ) -> Branch:
        """Return the branch to a leaf; for a run, with the messages that are kept for it."""
        if leaf is None:
            return Branch((), {})
        values = (tenant, thread_id, leaf, run_id)
        rows = await read_rows(self._engines.work, BRANCH, values, tenant=tenant)
        answers = {
            row["message_id"]: StoredAnswer.of_json(row["answer"])
            for row in rows
            if row["answer"] is not None
        }
        return Branch([_message(row, answers.get(row["message_id"])) for row in rows], answers)

    async def _leaf_of(self, run: Run) -> str | None:
        source = run.request.source
        asked = {"tenant": run.key.tenant, "run_id": run.key.run_id}
        asked["source"] = "" if source is None else source.run_id
        async with transaction(self._engines.work, run.key.tenant) as connection:
            leaf: str | None = (await connection.exec_driver_sql(LEAF_OF, asked)).scalar_one()
        return leaf


def _chat(run: Run) -> ChatInput:
    if run.request.chat is None:
        raise ValueError(f"run {run.key.run_id} belongs to no thread")
    return run.request.chat


def _message(row: Mapping[str, Any], answer: StoredAnswer | None) -> ThreadMessage:
    return ThreadMessage(
        message_id=row["message_id"],
        parent_id=None,
        role=Role(row["role"]),
        content=row["content"] if answer is None else answer.content,
        status=None if answer is None else answer.status,
        ends=row["ends"],
    )


def _numbered(history: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(replace(message, branch_index=at) for at, message in enumerate(history))

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
from caseworker.features.threads.memory import BranchMemory, ThreadVersion, numbered
from caseworker.features.threads.thread import Role, ThreadMessage
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput
from caseworker.platform.postgres.engines import Engines, read_rows, transaction
from caseworker.runs.errors import BranchNotFoundError
from caseworker.runs.run import Run

LOCK_THREAD = """
SELECT set_config('synchronous_commit', 'off', true)
FROM threads WHERE tenant_id = %(tenant)s AND thread_id = %(thread)s FOR KEY SHARE
"""
"""Lock a thread, so that no transaction erases or deletes its messages between two reads.

The lock ends with the transaction, which therefore does not wait for the disk."""

UP_TO = """
SELECT m.message_id, m.parent_id, m.role, m.content, m.ends, m.answer,
    m.role = 'assistant' AND m.answer IS NULL AND m.run_erased_at IS NULL AS is_of_run,
    false AS is_kept
FROM messages m
WHERE m.tenant_id = %(tenant)s AND m.thread_id = %(thread)s AND m.seq <= (
    SELECT max(leaf.seq) FROM messages leaf WHERE leaf.tenant_id = %(tenant)s
        AND leaf.thread_id = %(thread)s AND leaf.message_id = %(leaf)s)
UNION ALL
SELECT message_id, parent_id, role, content, ends, answer, false, true FROM kept_messages
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
"""
"""Return the messages of a thread up to a leaf, in any order, then those that are kept for a run.

One range of an index has them all. To look up the parent of each message would take longer, and
quadratic time if the planner has no statistics yet.
"""

OF_RUNS = """
SELECT m.message_id, caseworker_answer(r, m.ends) AS answer
FROM messages m JOIN runs r ON r.tenant_id = m.tenant_id AND r.run_id = m.run_id
WHERE m.tenant_id = %(tenant)s AND m.thread_id = %(thread)s
    AND m.message_id = ANY(%(wanted)s::text[]) AND m.run_erased_at IS NULL
    AND r.finished_at IS NOT NULL AND r.request #>> '{chat,thread_id}' = m.thread_id
"""
"""Return answers that are not stored with their messages yet, from their runs."""

STATE = """
SELECT created_at, erasures FROM threads
WHERE tenant_id = %(tenant)s AND thread_id = %(thread)s
"""

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
    is_kept: bool = False
    """Whether a run alone still has some of the messages."""

    def history(self, without: Sequence[str] = ()) -> list[Message]:
        """Return the messages for a model. The last one is from the user.

        ``without`` are the IDs of answers that stay out.
        """
        answered = [one for one in self.messages if one.message_id not in without]
        return history_of(answered, self.answers)

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
        self.memory = BranchMemory()
        self._engines = engines

    async def chat_of(self, run: Run) -> ChatInput:
        """Return the chat of a run with its messages, the same for each execution of the run.

        Raises:
            BranchNotFoundError: the thread or the message to answer was deleted before the run was
                first executed.
        """
        chat, tenant = _chat(run), run.key.tenant
        leaf = chat.leaf or await self._leaf_of(run)
        of_thread = {"tenant": tenant, "thread": chat.thread_id}
        # Before the messages: if one is erased in between, what was read counts as outdated.
        states = await read_rows(self._engines.work, STATE, of_thread, tenant=tenant)
        branch = await self.read(tenant, chat.thread_id, leaf, run.key.run_id)
        if not branch.messages:
            raise BranchNotFoundError
        chat = replace(chat, leaf=leaf, messages=numbered(branch.history(chat.without)))
        if states and not branch.is_kept:
            self.memory.remember(tenant, chat, ThreadVersion(**states[0]))
        return chat

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
        pool, of_thread = self._engines.work, {"tenant": tenant, "thread": thread_id}
        parameters = {**of_thread, "leaf": leaf, "run_id": run_id}
        locks = None if run_id is None else LOCK_THREAD
        rows = await read_rows(pool, UP_TO, parameters, tenant=tenant, locks=locks)
        branch = _branch_in({row["message_id"]: row for row in rows}, leaf)
        if of_runs := [row["message_id"] for row in branch if row["is_of_run"]]:
            rows_of_runs = await read_rows(
                pool, OF_RUNS, {**of_thread, "wanted": of_runs}, tenant=tenant
            )
            moved = {row["message_id"]: row["answer"] for row in rows_of_runs}
            branch = [
                {**row, "answer": moved.get(row["message_id"], row["answer"])} for row in branch
            ]
        answers = {
            row["message_id"]: StoredAnswer.of_json(row["answer"])
            for row in branch
            if row["answer"] is not None
        }
        messages = [_message(row, answers.get(row["message_id"])) for row in branch]
        return Branch(messages, answers, is_kept=any(row["is_kept"] for row in branch))

    async def _leaf_of(self, run: Run) -> str | None:
        source = run.request.source
        parameters = {"tenant": run.key.tenant, "run_id": run.key.run_id}
        parameters["source"] = "" if source is None else source.run_id
        async with transaction(self._engines.work, run.key.tenant) as connection:
            leaf: str | None = (await connection.exec_driver_sql(LEAF_OF, parameters)).scalar_one()
        return leaf


def _branch_in(rows: Mapping[str, Mapping[str, Any]], leaf: str | None) -> list[Mapping[str, Any]]:
    """Return the rows from the root to a leaf; empty if one of them is missing."""
    branch = list[Mapping[str, Any]]()
    while leaf is not None:
        if (row := rows.get(leaf)) is None:
            return []
        branch.append(row)
        leaf = row["parent_id"]
    return branch[::-1]


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

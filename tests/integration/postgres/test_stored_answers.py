"""Answers in the rows of their messages, and the branches that runs read from them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caseworker.features.retention.postgres import PostgresRetention
from caseworker.features.threads.postgres.branches import PostgresBranches
from caseworker.features.threads.postgres.old_answers import AnswerMoves
from caseworker.features.threads.postgres.threads import PostgresThreads
from caseworker.features.threads.thread import Role, Thread, ThreadMessage
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.postgres.engines import transaction
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.errors import BranchNotFoundError
from caseworker.runs.execute.postgres.runs import halt_overdue
from caseworker.runs.run import Run, RunSource, RunStatus
from tests.support.stores import CANCEL_REQUEST, Oracle, Stores, end_of, eventually, new_run
from tests.support.threads import store_messages

TENANT = "default"
ANSWERS = "SELECT answer FROM messages WHERE role = 'assistant' ORDER BY seq"
KEPT = "SELECT count(*) FROM kept_messages"
FORGET = "UPDATE messages SET answer = NULL"
"""Leaves the answers where the previous release stored them, in the results of runs."""


class Chat:
    """A thread whose answers are given by hand."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.threads = PostgresThreads(stores.engines)
        self.branches = PostgresBranches(stores.engines)

    async def begin(self) -> "Chat":
        """Create the thread."""
        thread = Thread(tenant=TENANT, thread_id="t", kind=DefinitionKind.AGENT, definition={})
        await self.threads.create(thread)
        return self

    async def ask(
        self, run_id: str, after: str | None = None, *, worker: str | None = "w", **request: Any
    ) -> Run:
        """Store a question and accept the run that answers it."""
        await self.add(run_id, after)
        new = self.run(run_id, f"{run_id}-u", **request)
        return (await self.stores.runs.accept(new, worker_id=worker)).run

    async def add(self, run_id: str, after: str | None = None) -> None:
        """Store a question, and the message of its answer."""
        user = ThreadMessage(
            message_id=f"{run_id}-u", parent_id=after, role=Role.USER, content=f"{run_id}?"
        )
        answer = ThreadMessage(
            message_id=f"{run_id}-a",
            parent_id=user.message_id,
            role=Role.ASSISTANT,
            run_id=run_id,
            ends=["agent"],
        )
        await store_messages(self.stores.engines, TENANT, "t", [user, answer], 99)

    @staticmethod
    def run(run_id: str, leaf: str, **request: Any) -> Any:
        """Return a run that answers a message."""
        new, chat = new_run(run_id), ChatInput(thread_id="t", leaf=leaf)
        asked: dict[str, Any] = {"graph": {}, "inputs": {"default": leaf.replace("-u", "?")}}
        return replace(new, request=replace(new.request, chat=chat, **{**asked, **request}))

    async def end(self, run: Run, text: Any = "Yes.", *more: Any, **end: Any) -> None:
        """Complete a run with an answer; ``more`` are further messages of its agent."""
        said = [{"role": "user", "content": f"{run.key.run_id}?"}, *more]
        output = {"default": text, "result": {"raw_content": text, "messages": said}}
        result = {"outputs": {"agent": output}}
        await self.stores.journal.finish(end_of(run, **{"result": result, **end}))

    async def answered(self, run_id: str, after: str | None = None, text: Any = "Yes.") -> str:
        """Ask and answer; return the ID of the answer."""
        await self.end(await self.ask(run_id, after), text)
        return f"{run_id}-a"

    async def heard(self, run: Run) -> list[str]:
        """Return the texts of the messages that a run receives."""
        return [message.content for message in (await self.branches.chat_of(run)).messages]


async def values(oracle: Oracle, query: str) -> list[Any]:
    """Return the only column of a query."""
    return [next(iter(row.values())) for row in await oracle.rows(query)]


@pytest.fixture
async def chat(stores: Stores) -> Chat:
    return await Chat(stores).begin()


async def test_an_answer_is_stored_by_the_end_of_its_run_whoever_writes_it(
    chat: Chat, oracle: Oracle
) -> None:
    """Owners end runs, and so do a cancel request and a passed deadline without an owner."""
    await chat.end(await chat.ask("completed"))
    failed = await chat.ask("failed")
    await chat.end(failed, "Half", status=RunStatus.FAILED)
    cancelled = await chat.ask("cancelled", worker=None)
    await chat.stores.runs.cancel(cancelled.key, CANCEL_REQUEST)
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    await chat.ask("halted", worker=None, deadline=soon)

    async def halted() -> bool:
        async with transaction(chat.stores.engines.work) as connection:
            return bool(await halt_overdue(connection, 9))

    await eventually(halted)
    stored = await values(oracle, ANSWERS)

    assert [(one["status"], one["parts"], one["incomplete"]) for one in stored] == [
        ("completed", ["Yes."], None),
        ("failed", ["Half"], None),
        ("cancelled", [], "cancelled"),
        ("halted", [], None),
    ]


async def test_a_run_stores_neither_its_branch_nor_its_earlier_answers(
    chat: Chat, oracle: Oracle
) -> None:
    """Its request names the last message of the branch, which it reads when it is executed."""
    first = await chat.answered("one", text="An answer.")
    run = await chat.ask("two", first)

    request = await oracle.value("SELECT request::text FROM runs WHERE run_id = 'two'")
    assert await chat.heard(run) == ["one?", "An answer.", "two?"]
    assert "An answer." not in request
    assert json.loads(request)["chat"]["leaf"] == "two-u"
    places = [one.branch_index for one in (await chat.branches.chat_of(run)).messages]
    assert places == [0, 1, 2]


async def test_an_erased_answer_is_kept_for_the_run_that_needs_it_and_for_no_other(
    chat: Chat, oracle: Oracle
) -> None:
    """Its text disappears from the thread at once, and everywhere when that run ends."""
    first = await chat.answered("one", text="A secret.")
    needs = await chat.ask("two", first)
    await chat.ask("other", None)

    await chat.stores.runs.erase(new_run("one").key)
    heard = await chat.heard(needs)
    later = await chat.ask("later", first)
    kept = await oracle.value(KEPT)
    shown = await chat.threads.contents(TENANT, "t", [first])
    await chat.end(needs)

    assert heard == ["one?", "A secret.", "two?"]
    assert kept == 1
    assert await chat.heard(later) == ["one?", "later?"]
    assert shown[first]["content"] is None
    for table in ("messages", "kept_messages", "runs", "calls"):
        rows = await values(oracle, f"SELECT t::text FROM {table} t")  # noqa: S608
        assert not [row for row in rows if "A secret." in row], table


async def test_a_deleted_thread_stays_for_its_unfinished_runs_until_they_end(
    chat: Chat, oracle: Oracle
) -> None:
    """They receive the same messages as before; their end deletes the rest."""
    first = await chat.answered("one")
    await chat.answered("sibling", first, "Another branch.")
    run = await chat.ask("two", first)
    before = await chat.branches.chat_of(run)

    await chat.threads.delete(TENANT, "t")
    after = await chat.branches.chat_of(run)
    texts = " ".join(await values(oracle, "SELECT k::text FROM kept_messages k"))
    await chat.end(run)

    assert after == before
    assert "Another branch." not in texts
    assert await oracle.value(KEPT) == 0


async def test_a_run_whose_messages_were_deleted_before_it_came_has_no_branch(chat: Chat) -> None:
    """It does not answer an empty chat."""
    first = await chat.answered("one")
    await chat.threads.delete(TENANT, "t")
    late = await chat.stores.runs.accept(chat.run("late", first), worker_id="w")

    with pytest.raises(BranchNotFoundError):
        await chat.branches.chat_of(late.run)


async def test_messages_that_were_kept_while_a_run_ended_are_swept(
    chat: Chat, oracle: Oracle
) -> None:
    """A race may keep a message just after the end of the run deleted the kept ones."""
    await chat.answered("one")
    await oracle.rows(
        """INSERT INTO kept_messages (tenant_id, run_id, message_id, role, ends)
        VALUES ('default', 'one', 'm', 'user', '[]')"""
    )
    assert await PostgresRetention(chat.stores.engines.work, {}).claim_sweep_and_merge_counters(0)

    assert await oracle.value(KEPT) == 0


async def test_a_run_reads_its_branch_after_an_erasure_that_has_begun(
    chat: Chat, oracle: Oracle
) -> None:
    """Otherwise it would read a text that is not kept, because the erasure does not see it yet."""
    await chat.add("two", await chat.answered("one", text="A secret."))
    async with transaction(chat.stores.engines.work) as erasing:
        erased = "UPDATE messages SET run_erased_at = now() WHERE message_id = 'one-a'"
        await erasing.exec_driver_sql(erased)
        run = (await chat.stores.runs.accept(chat.run("two", "two-u"), worker_id="w")).run
        reading = asyncio.create_task(chat.heard(run))
        await oracle.until_waiting("transactionid")
    assert await reading == ["one?", "two?"]


async def test_answers_of_the_previous_release_read_the_same_before_and_after_they_are_moved(
    chat: Chat, oracle: Oracle
) -> None:
    """They are moved in batches by one process at a time, and each only once."""
    last: str | None = None
    texts: Sequence[Any] = ("Text.", {"b": [1.0, "ü"], "a": None}, "", 7, "Last.")
    for number, text in enumerate(texts):
        last = await chat.answered(f"r{number}", last, text)
    wanted = [f"r{number}-a" for number in range(len(texts))]
    next_run = await chat.ask("next", last)
    stored = await values(oracle, ANSWERS)
    await oracle.rows(FORGET)
    before = await chat.threads.contents(TENANT, "t", wanted), await chat.heard(next_run)

    moves, other = (AnswerMoves(chat.stores.engines.work) for _ in range(2))
    async with transaction(chat.stores.engines.work) as working:
        await moves.move(limit=3)
        await working.exec_driver_sql("SELECT FROM moves FOR UPDATE")
        assert await other.move() is None
    partly = await chat.threads.contents(TENANT, "t", wanted), await chat.heard(next_run)
    while await moves.move(limit=3):
        pass
    after = await chat.threads.contents(TENANT, "t", wanted), await chat.heard(next_run)

    assert before == partly == after
    assert before[1] == [
        *("r0?", "Text.", "r1?", '{"a":null,"b":[1.0,"ü"]}', "r2?", "r3?", "7", "r4?", "Last."),
        "next?",
    ]
    assert await values(oracle, ANSWERS) == stored
    await oracle.rows(FORGET)
    assert await other.move() is False, "it has ended"
    assert await values(oracle, ANSWERS) == [None] * len(stored)


CALL = {"id": "1", "name": "calculator", "arguments": "{}"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "42", "tool_call_id": "1", "tool_name": "calculator"}


async def test_an_answer_keeps_the_calls_since_its_question(chat: Chat, oracle: Oracle) -> None:
    """Other messages of the agent are left out, and so are the calls of earlier answers."""
    run = await chat.ask("one")
    question = {"role": "user", "content": "one?"}
    said = [CALLING, {**RESULT, "content": "old"}, question, CALLING, RESULT, {"role": "assistant"}]
    await chat.end(run, "Yes.", *said)

    (stored,) = await values(oracle, ANSWERS)
    following = await chat.ask("two", "one-a")
    heard = [(one.role, one.content) for one in (await chat.branches.chat_of(following)).messages]

    assert stored["calls"]["messages"] == [CALLING, RESULT]
    assert heard == [
        *(("user", "one?"), ("assistant", ""), ("tool", "42")),
        *(("assistant", "Yes."), ("user", "two?")),
    ]


@pytest.mark.parametrize(
    "messages", ["text", 5, [5, None], [[]], [{"role": "tool"}], [{"role": ["tool"]}, RESULT]]
)
async def test_a_run_ends_whatever_its_last_step_puts_out(
    chat: Chat, oracle: Oracle, messages: Any
) -> None:
    """A step that is not an agent may use the names of the outputs of an agent differently."""
    run = await chat.ask("one")
    output = {"default": [messages], "result": {"messages": messages}}
    await chat.end(run, result={"outputs": {"agent": output}})
    following = await chat.ask("two", "one-a")

    stored, _ = await values(oracle, ANSWERS)
    assert stored["parts"] == [[messages]]
    assert len(await chat.heard(following)) >= 3


async def test_a_fork_that_the_previous_release_accepted_reads_the_branch_of_its_source(
    chat: Chat,
) -> None:
    """That release drops the name of the last message from the request."""
    await chat.answered("one")
    new = new_run("fork")
    dropped = ChatInput.of_json({**ChatInput(thread_id="t", leaf="x").to_json(), "leaf": None})
    request = replace(new.request, chat=dropped, source=RunSource("one"))
    fork = await chat.stores.runs.accept(replace(new, request=request), worker_id="w")

    assert dropped.leaf is None
    assert await chat.heard(fork.run) == ["one?"]


@pytest.mark.parametrize("letters", ["x" * 200, 'ü"\\\n\u2028/\u0007' * 50, "short"])
async def test_the_journal_of_an_answer_repeats_neither_its_question_nor_its_text(
    chat: Chat, oracle: Oracle, letters: str
) -> None:
    """Readers of the journal receive each value as it was written."""
    question, answer = f"Q {letters}", f"A {letters}"
    run = await chat.ask("one", inputs={"default": question})
    values_by_key: dict[str, Any] = {
        "step:chat": {"default": question},
        "step:agent": {"result": {"raw_content": answer, "messages": [question, 1.50]}},
        "agent/turn/1": {"text": answer, "thinking": f"{answer} {question}"},
        "agent/1.1": {answer: question},
        "other/turn/1": {"text": answer},
    }
    for seq, (key, value) in enumerate(values_by_key.items(), 1):
        await oracle.rows(
            f"""INSERT INTO calls (tenant_id, run_id, seq, status, call_key, outcome, node, value)
            VALUES ('{TENANT}', 'one', {seq}, 'success', '{key}', 'result', '{{}}',
                $json${dump(value)}$json$)"""  # noqa: S608
        )
    await chat.end(run, answer)

    read = "SELECT value::text FROM {} WHERE run_id = 'one' ORDER BY seq"
    stored = await values(oracle, read.format("calls"))
    assert await values(oracle, read.format("journal")) == list(map(dump, values_by_key.values()))
    repeated = [dump(letters)[1:-1] in one for one in stored]
    whole = letters == "short"
    assert repeated == [whole, whole, True, True, True]


async def test_a_question_that_reads_like_json_does_not_hinder_the_end(
    chat: Chat, oracle: Oracle
) -> None:
    """In a value of its run, it begins in one name and ends in another."""
    numbers = [1] * 60
    run = await chat.ask("one", inputs={"default": f":{dump(numbers)},"})
    value = dump({"a": numbers, "b": 2})
    await oracle.rows(
        f"""INSERT INTO calls (tenant_id, run_id, seq, status, call_key, outcome, node, value)
        VALUES ('{TENANT}', 'one', 1, 'success', 'step:agent', 'result', '{{}}', '{value}')"""  # noqa: S608
    )
    await chat.end(run, "Yes.")

    assert await values(oracle, "SELECT value::text FROM journal WHERE run_id = 'one'") == [value]


async def test_answers_count_as_stored_bytes_until_they_are_gone(
    chat: Chat, oracle: Oracle
) -> None:
    """A quota on storage counts the texts of questions and answers alike."""
    stored = "SELECT sum(bytes) FROM stored"
    before = await oracle.value(stored)
    await chat.answered("one", text="x" * 5_000)
    most = await oracle.value(stored)
    await chat.threads.delete(TENANT, "t")
    await chat.stores.runs.erase(new_run("one").key)

    assert most - before > 5_000
    assert await oracle.value(stored) < before

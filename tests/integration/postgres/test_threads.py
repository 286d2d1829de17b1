"""Messages of several threads in one table."""

from dataclasses import replace

import psycopg
from psycopg.rows import dict_row

from caseworker.features.threads.postgres.threads import PostgresThreads, reply_rows
from caseworker.features.threads.thread import Role, Thread, ThreadMessage
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.accept.postgres.batch_accept import QueueCapacity, RunInsert, accept_in_batch
from caseworker.runs.run import NewRun
from tests.support.stores import Stores, new_run
from tests.support.threads import store_messages


def thread_of(tenant: str, thread_id: str) -> Thread:
    """Return a thread without messages."""
    return Thread(tenant=tenant, thread_id=thread_id, kind=DefinitionKind.AGENT, definition={})


def answering_run(run_id: str, thread_id: str, *, tenant: str) -> NewRun:
    """Return a run that stores a question and its answer in a thread."""
    question = ThreadMessage(
        message_id=f"question-{run_id}", parent_id=None, role=Role.USER, content="Hello."
    )
    reply = ThreadMessage(
        message_id=f"answer-{run_id}",
        parent_id=question.message_id,
        role=Role.ASSISTANT,
        run_id=run_id,
    )
    rows = reply_rows([question, reply])
    chat = ChatInput(
        thread_id=thread_id, leaf=question.message_id, reply={"messages": rows, "limit": 9}
    )
    run = new_run(run_id, tenant=tenant)
    return replace(run, request=replace(run.request, chat=chat))


async def test_a_thread_has_its_own_messages_alone(stores: Stores) -> None:
    """Messages of other threads and of other tenants are not returned."""
    threads = PostgresThreads(stores.engines)
    for tenant, thread_id in (("a", "one"), ("a", "two"), ("b", "one")):
        await threads.create(thread_of(tenant, thread_id))
        said = ThreadMessage(
            message_id=f"{tenant}-{thread_id}", parent_id=None, role=Role.USER, content="Hello."
        )
        await store_messages(stores.engines, tenant, thread_id, [said])

    found = [message.message_id for message in await threads.messages("a", "one")]

    assert found == ["a-one"]


async def test_a_batch_of_runs_does_not_wait_for_a_locked_thread(
    stores: Stores, database_url: str
) -> None:
    """It inserts the runs of free threads and runs without a thread."""
    threads = PostgresThreads(stores.engines)
    for thread_id in ("locked", "free"):
        await threads.create(thread_of("a", thread_id))
    runs = [
        answering_run("r1", "locked", tenant="a"),
        answering_run("r2", "free", tenant="a"),
        answering_run("r3", "gone", tenant="a"),
        new_run("r4", tenant="b"),
    ]
    async with (
        await psycopg.AsyncConnection.connect(database_url) as blocker,
        await psycopg.AsyncConnection[dict[str, object]].connect(
            database_url, options="-c lock_timeout=1", row_factory=dict_row
        ) as connection,
    ):
        await blocker.execute("SELECT FROM threads WHERE thread_id = 'locked' FOR UPDATE")
        answers = await accept_in_batch(
            connection,
            [RunInsert(run, None, max_queued=100) for run in runs],
            capacity=QueueCapacity(),
        )

    assert [answer is None for answer in answers] == [True, False, True, False]
    assert [one.message_id for one in await threads.messages("a", "free")] == [
        "question-r2",
        "answer-r2",
    ]

"""Contract of the thread store and of the answers made with it."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from caseworker.features.threads import service
from caseworker.features.threads.postgres.threads import PostgresThreads
from caseworker.features.threads.service import Chats, PlannedReply, derived_id
from caseworker.features.threads.thread import (
    AnswerNotEndedError,
    MessageNotFoundError,
    Role,
    Thread,
    ThreadChangedError,
    ThreadConflictError,
    ThreadFullError,
    ThreadMessage,
    ThreadNotFoundError,
)
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.postgres.engines import Engines
from caseworker.runs.errors import IdempotencyMismatchError, InvalidRunError, RunConflictError
from caseworker.runs.ports import RunStore
from caseworker.runs.run import NewRun, Run, RunStatus
from tests.support.api import Api
from tests.support.runs import run_service
from tests.support.stores import new_run
from tests.support.threads import planned, store_messages

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINE, OTHERS = "default", "another"


@dataclass(frozen=True)
class Opened:
    """A thread store and a run store without workers."""

    engines: Engines
    threads: PostgresThreads
    runs: RunStore

    @property
    def chats(self) -> Chats:
        return Chats(self.threads, run_service(self.runs))

    async def begin(self, thread_id: str = "t", tenant: str = MINE, **more: Any) -> Thread:
        stored, _ = await self.threads.create(thread(thread_id, tenant, **more))
        return stored


@pytest.fixture
def opened(api: Api) -> Opened:
    return Opened(api.parts.engines, api.threads, api.store)


def thread(thread_id: str = "t", tenant: str = MINE, **more: Any) -> Thread:
    fields: dict[str, Any] = {
        "kind": DefinitionKind.AGENT,
        "definition": {"name": "helper"},
        "tools": ["calculator"],
        "request_hash": f"hash of {thread_id}",
        **more,
    }
    return Thread(tenant=tenant, thread_id=thread_id, **fields)


def pair(run_id: str, parent_id: str | None = None) -> tuple[ThreadMessage, ThreadMessage]:
    user = ThreadMessage(
        message_id=f"{run_id}-u",
        parent_id=parent_id,
        role=Role.USER,
        content=f"Question {run_id}",
        request_hash=run_id,
    )
    assistant = ThreadMessage(
        message_id=f"{run_id}-a",
        parent_id=user.message_id,
        role=Role.ASSISTANT,
        run_id=run_id,
        ends=("a",),
        request_hash=run_id,
    )
    return user, assistant


async def say(opened: Opened, of: Thread, content: str, run_id: str, **more: Any) -> Any:
    turn = await planned(opened.chats, "saying", of, content=content, parent_id=None)
    new = answering(run_id, content, of.tenant)
    return await opened.chats.answer(of, turn, replace(new, **more), ["a"])


def answering(run_id: str, content: str, tenant: str = MINE) -> NewRun:
    """Return a run that answers in a thread."""
    new = new_run(run_id, tenant=tenant)
    request = replace(new.request, chat=ChatInput(thread_id="t"))
    return replace(new, request=request, request_hash=content)


async def end(opened: Opened, run_id: str) -> None:
    """End a run that waits."""
    await opened.chats._runs.cancel(new_run(run_id).key, by="tester")


async def test_a_thread_is_stored_once(opened: Opened) -> None:
    """The same request returns it; another one under its ID is refused."""
    first, created = await opened.threads.create(thread(metadata={"a": [1]}, title="T"))
    same, again = await opened.threads.create(thread(metadata={"a": [1]}, title="T"))

    assert (created, again) == (True, False)
    assert first == same == await opened.threads.get(MINE, "t")
    assert first.created_at is not None
    with pytest.raises(ThreadConflictError):
        await opened.threads.create(thread(request_hash="another"))


async def test_threads_are_listed_newest_first(opened: Opened) -> None:
    """Pages omit the definitions of the threads."""
    for number in range(5):
        await opened.begin(f"t{number}")

    first = await opened.threads.find(MINE, limit=3, cursor=None)
    rest = await opened.threads.find(MINE, limit=3, cursor=first.next_cursor)

    found = [*first.items, *rest.items]
    assert [one.thread_id for one in found] == ["t4", "t3", "t2", "t1", "t0"]
    assert {str(one.definition) for one in found} == {"{}"}
    assert rest.next_cursor is None
    with pytest.raises(InvalidRunError):
        await opened.threads.find(MINE, limit=3, cursor="nonsense")


async def test_two_tenants_never_meet(opened: Opened) -> None:
    """The same IDs denote separate threads, messages and runs."""
    mine = await opened.begin(title="mine")
    theirs = await opened.begin(tenant=OTHERS, title="theirs")
    await say(opened, mine, "My secret", "r")
    await say(opened, theirs, "Their secret", "r")

    for owner, content in ((mine, "My secret"), (theirs, "Their secret")):
        tree = await opened.chats.tree(owner)
        said = await opened.chats.with_contents(owner, tree.messages)
        assert [one.content for one in said] == [content, None]
        page = await opened.threads.find(owner.tenant, limit=9, cursor=None)
        assert [one.title for one in page.items] == [owner.title]
    assert await opened.threads.delete(OTHERS, "t")
    assert await opened.threads.get(MINE, "t") == mine
    assert len((await opened.chats.tree(mine)).messages) == 2
    with pytest.raises(ThreadNotFoundError):
        await opened.chats.place(OTHERS, "t", None)


async def test_messages_come_back_in_their_order(opened: Opened) -> None:
    """An answer has the status of its run, or none if the run was never accepted."""
    await opened.begin()
    await store_messages(opened.engines, MINE, "t", pair("r1"))
    await opened.runs.accept(new_run("r1"), worker_id=None)
    await store_messages(opened.engines, MINE, "t", pair("r2", "r1-a"))

    found = await opened.threads.messages(MINE, "t")

    assert [one.message_id for one in found] == ["r1-u", "r1-a", "r2-u", "r2-a"]
    assert [one.status for one in found] == [None, RunStatus.QUEUED, None, None]
    assert found[1].ends == ["a"] or found[1].ends == ("a",)


async def test_messages_are_stored_with_their_run_and_once(opened: Opened) -> None:
    """A repeated request stores nothing; a refused run leaves no message."""
    mine = await opened.begin()
    await opened.runs.accept(new_run("a-case"), worker_id=None)
    reply = PlannedReply(parent_id=None, content="Hello", question="Hello")
    new = answering("r1", "Hello")
    first, again = [await opened.chats.answer(mine, reply, new, ["a"]) for _ in range(2)]
    unknown = replace(reply, parent_id="nobody")

    assert (first.accepted.created, again.accepted.created) == (True, False)
    for refused, new, turn in (
        (IdempotencyMismatchError, answering("r1", "other"), reply),
        (RunConflictError, answering("a-case", "Hello"), reply),
        (MessageNotFoundError, answering("r2", "Hello"), unknown),
    ):
        with pytest.raises(refused):
            await opened.chats.answer(mine, turn, new, ["a"])
    assert len(await opened.threads.messages(MINE, "t")) == 2
    assert await opened.runs.get(new_run("r2").key) is None


async def test_a_full_thread_refuses_the_run_and_its_messages(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts all messages of the thread."""
    monkeypatch.setattr(service, "MAX_THREAD_MESSAGES", 3)
    mine = await opened.begin()
    await say(opened, mine, "Hello", "r1")
    await end(opened, "r1")

    with pytest.raises(ThreadFullError):
        await say(opened, mine, "And?", "r2")
    assert len(await opened.threads.messages(MINE, "t")) == 2
    assert await opened.runs.get(new_run("r2").key) is None


async def test_a_process_remembers_a_branch_until_one_of_its_texts_is_erased(
    opened: Opened,
) -> None:
    """A run is accepted with the texts only if none was erased since they were read."""
    mine = await opened.begin()
    await say(opened, mine, "Hello", "r1")
    await end(opened, "r1")
    turn = await planned(opened.chats, "saying", mine, content="And?", parent_id=None)
    known = await opened.chats.answer(mine, turn, answering("r2", "And?"), ["a"])
    await end(opened, "r2")
    late = await planned(opened.chats, "saying", mine, content="So?", parent_id=None)
    await opened.runs.erase(new_run("r2").key)
    changed = await opened.chats.answer(mine, late, answering("r3", "So?"), ["a"])
    await end(opened, "r3")
    after = await planned(opened.chats, "saying", mine, content="Then?", parent_id=None)
    odd = await opened.chats.answer(
        mine, replace(after, content="\0"), answering("r4", "\0"), ["a"]
    )

    def texts(run: Run) -> list[str]:
        chat = run.request.chat
        return [] if chat is None else [one.content for one in chat.messages]

    assert turn.state is not None
    assert texts(known.accepted.run) == ["Hello", "And?"]
    assert late.state is not None
    assert (changed.accepted.created, texts(changed.accepted.run)) == (True, [])
    assert texts(odd.accepted.run) == [], "the database stores another text"
    assert after.history is not None
    assert [one.content for one in after.history] == ["Hello", "And?", "So?", "Then?"]


async def test_a_turn_that_was_planned_from_memory_is_refused_if_another_one_came_first(
    opened: Opened,
) -> None:
    """It is stored without reading the thread if its parent is still the newest message."""
    mine, chats = await opened.begin(), opened.chats
    first = await say(opened, mine, "Hello", "r1")
    await end(opened, "r1")
    await chats.displayed(mine, first, first.accepted.run)
    late, turn = [chats.remembered(MINE, "t", content) for content in ("Late", "And?")]
    assert late is not None
    assert turn is not None
    second = await chats.answer(*turn, answering("r2", "And?"), ["a"])
    with pytest.raises(ThreadChangedError):
        await chats.answer(*late, answering("r3", "Late"), ["a"])

    assert second.user is not None
    assert second.user.parent_id == first.assistant.message_id
    assert (late[0], [one.content for one in turn[1].history or ()]) == (mine, ["Hello", "And?"])
    assert len(await opened.threads.messages(MINE, "t")) == 4
    assert await opened.runs.get(new_run("r3").key) is None
    assert chats.remembered(MINE, "t", "And?") is None


async def test_messages_that_follow_the_newest_one_are_displayed_without_reading_them(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that stores them knows that they have no siblings, and when they were stored."""
    mine, chats = await opened.begin(), opened.chats
    first = await say(opened, mine, "Hello", "r1")
    await end(opened, "r1")
    await chats.displayed(mine, first, first.accepted.run)
    turn = chats.remembered(MINE, "t", "And?")
    assert turn is not None
    second = await chats.answer(*turn, answering("r2", "And?"), ["a"])

    async def refuse(*_: Any) -> None:
        raise AssertionError("the messages were read")

    with monkeypatch.context() as patched:
        patched.setattr(opened.threads, "displayed", refuse)
        shown = await chats.displayed(mine, second, second.accepted.run)

    ids = [one.message_id for one, _ in shown]
    stored = await opened.threads.displayed(MINE, "t", ids)
    names = ("content", "incomplete", "incomplete_reason", "model", "created_at")
    for message, siblings in shown:
        expected = stored[message.message_id]
        assert [getattr(message, name) for name in names] == [expected[name] for name in names]
        assert siblings == expected["siblings"] == [message.message_id]
    assert [one.role for one, _ in shown] == [Role.USER, Role.ASSISTANT]


async def test_a_deleted_thread_leaves_its_runs(opened: Opened) -> None:
    """Everything else of the thread is deleted."""
    mine = await opened.begin()
    await say(opened, mine, "Hello", "r")

    assert await opened.threads.delete(MINE, "t")

    assert not await opened.threads.delete(MINE, "t")
    assert await opened.threads.messages(MINE, "t") == []
    assert await opened.runs.get(new_run("r").key) is not None
    reply = PlannedReply(parent_id=None, content="Hello", question="Hello")
    with pytest.raises(ThreadNotFoundError):
        await opened.chats.answer(mine, reply, answering("r2", "Hello"), ["a"])


@pytest.mark.req("004/cancel-early")
async def test_a_run_that_is_cancelled_between_its_message_and_itself_never_works(
    opened: Opened,
) -> None:
    """The cancel request of the thread is stored and applied when the run is created."""
    mine = await opened.begin()
    await store_messages(opened.engines, MINE, "t", pair("r"))

    stopped = await opened.chats.stop(mine, by="tester", reason="too late")
    accepted = await opened.runs.accept(new_run("r"), worker_id="w")

    assert [(one.run_id, one.status) for one in stopped] == [("r", None)]
    assert accepted.run.status is RunStatus.CANCELLED
    assert (await opened.chats.stop(mine, by="tester", reason=None)) == []


async def test_an_answer_whose_run_is_erased_says_so_and_can_be_made_again(
    opened: Opened,
) -> None:
    """An unrelated run with the same ID is not the answer; repeating the message creates one."""
    mine = await opened.begin()
    await say(opened, mine, "Hello", "r")
    await end(opened, "r")
    await opened.runs.erase(new_run("r").key)
    await opened.runs.accept(new_run("r", text="of somebody else"), worker_id=None)

    [user, answer] = (await opened.chats.tree(mine)).messages
    assert (answer.erased, answer.status, answer.settled) == (True, None, True)
    assert (user.erased, user.status) == (False, None)
    said = await opened.chats.with_contents(mine, [user, answer])
    assert [one.content for one in said] == ["Hello", None]
    assert list(await opened.chats.stop(mine, by="tester", reason=None)) == []

    await end(opened, "r")
    await opened.runs.erase(new_run("r").key)
    turn = await opened.chats.earlier(mine, "r", "Hello")
    assert isinstance(turn, PlannedReply)
    answered = await opened.chats.answer(mine, turn, answering("r", "Hello"), ["a"])
    assert answered.accepted.created
    [_, answer] = (await opened.chats.tree(mine)).messages
    assert (answer.erased, answer.status) == (False, RunStatus.QUEUED)


@pytest.mark.req("004/chat")
async def test_a_message_whose_run_never_came_is_answered_when_it_is_repeated(
    opened: Opened,
) -> None:
    """Until then the answer has no status, cannot be followed up and can be retried."""
    mine = await opened.begin()
    ids = [derived_id("t", "r", role) for role in Role]
    user, answer = (
        replace(one, message_id=message_id, request_hash="Hello")
        for one, message_id in zip(pair("r"), ids, strict=True)
    )
    both = [replace(user, content="Hello"), replace(answer, parent_id=user.message_id)]
    await store_messages(opened.engines, MINE, "t", both)
    [user, answer] = (await opened.chats.tree(mine)).messages
    assert answer.status is None

    found = await opened.chats.earlier(mine, "r", "Hello")
    assert isinstance(found, PlannedReply)
    assert (found.parent_id, found.content) == (None, "Hello")
    assert [one.content for one in found.history or ()] == ["Hello"]
    retried = await planned(opened.chats, "retrying", mine, message_id=answer.message_id)
    assert (retried.parent_id, retried.content) == (user.message_id, None)
    answered = await opened.chats.answer(mine, found, answering("r", "Hello"), ["a"])

    assert answered.accepted.created
    assert len((await opened.chats.tree(mine)).messages) == 2
    with pytest.raises(IdempotencyMismatchError):
        await opened.chats.earlier(mine, "r", "Something else")


@pytest.mark.req("004/chat")
async def test_every_action_waits_for_the_answers_before_it(opened: Opened) -> None:
    """Once the answer has ended, it can be followed up, retried and resumed."""
    mine, chats = await opened.begin(), opened.chats
    answered = await say(opened, mine, "Hello", "r")
    user, answer = answered.user.message_id, answered.assistant.message_id

    async def plan(action: str, at: str | None = None, **more: Any) -> Any:
        return await planned(chats, action, mine, at, **more)

    for asked in (
        plan("saying", content="And?", parent_id=None),
        plan("continuing", message_id=answer),
    ):
        with pytest.raises(AnswerNotEndedError):
            await asked
    with pytest.raises(InvalidRunError):
        await plan("saying", user, content="And?", parent_id=user)
    with pytest.raises(MessageNotFoundError):
        await plan("saying", "nobody", content="And?", parent_id="nobody")
    with pytest.raises(InvalidRunError):
        await plan("editing", answer, message_id=answer, content="And?")
    with pytest.raises(MessageNotFoundError):
        await plan("editing", "nobody", message_id="nobody", content="And?")
    with pytest.raises(InvalidRunError):
        await plan("continuing", message_id=user)
    with pytest.raises(MessageNotFoundError):
        await plan("retrying", message_id="nobody")
    assert (await plan("retrying", message_id=answer)).parent_id == user
    await end(opened, "r")

    goes_on = await plan("continuing", message_id=answer)
    assert goes_on.resumed_answer is not None
    assert (goes_on.resumed_answer.run_id, goes_on.parent_id) == ("r", user)
    assert (await plan("saying", content="And?", parent_id=None)).parent_id == answer


async def test_requests_that_come_twice_at_once_make_one_answer(opened: Opened) -> None:
    """Every request gets the same answer."""
    mine = await opened.begin()
    turn = await planned(opened.chats, "saying", mine, content="Hello", parent_id=None)
    new = answering("r", "Hello")

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(opened.chats.answer(mine, turn, new, ["a"])) for _ in range(5)]

    assert [task.result().accepted.created for task in asked].count(True) == 1
    assert len({task.result().assistant.message_id for task in asked}) == 1
    assert len((await opened.chats.tree(mine)).messages) == 2

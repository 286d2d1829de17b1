"""Long conversations: each call hashes and stores only the messages that it adds."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.models.message_log import MessageLog
from caseworker.models.ports import Message, ToolCall, ToolDefinition
from caseworker.runs.read.conversations import beginning_of, whole_request
from caseworker.runs.run import CallRecord
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, chain, priced, told

PRICED = priced("first")
TURNS = 5
CALL = {"id": "c1", "name": "add", "arguments": '{"a": 1}'}
ADD = ToolDefinition(name="add", description="Adds.", parameters={"type": "object"})
RESULT = {"status": "success", "sum": "two"}
BEGINNING = (
    Message(role="system", content="Plan."),
    Message(role="user", content="Count to many."),
)


async def converse(
    asking: Asking,
    log: MessageLog | list[Message],
    turn: int,
    said: str = "again",
    *,
    adds: bool = True,
    **parameters: Any,
) -> None:
    """Make one more call with the whole conversation, and append its messages."""
    completion = await asking.ask(key=f"turn/{turn}", messages=log, **parameters)
    if not adds:
        return
    results = [
        Message(
            role="tool",
            content=json.dumps(RESULT, separators=(",", ":")),
            tool_call_id=call.id,
            tool_name=call.name,
            result_of="step/tool",
        )
        for call in completion.tool_calls
    ]
    more = (completion.message, *results, Message(role="user", content=f"{said} {turn}"))
    log.add(*more) if isinstance(log, MessageLog) else log.extend(more)


def records(asking: Asking) -> list[CallRecord]:
    """Return the stored records of the model calls and the result of the tool."""
    journal = asking.run.journal
    tool: Any = {"node_id": "n000000", "parent_id": "n000001"}
    stored = [CallRecord(node=tool, call_key="step/tool", outcome="result", value=RESULT)]
    for node_id, entry in journal.entries.items():
        node = asking.run.graph.node(node_id)
        request, outcome = journal.requests.get(node_id), entry.outcome
        assert outcome is not None
        stored.append(
            CallRecord(
                node=node,
                call_key=entry.call_key,
                request_hash=entry.request_hash,
                request=request,
                outcome=outcome.value,
                value=entry.value,
            )
        )
    return stored


def scripted(asking: Asking, text: str = "a word") -> None:
    """Script the model to reply with text, and to call a tool in the third turn."""
    calling = Step(text="I add.", tool_calls=[CALL])
    steps = [Step(text=f"{text} {turn}") for turn in range(2)]
    asking.provider.script("first", *steps, calling, Step(text=text), repeat_last=True)


def sizes(stored: Sequence[CallRecord]) -> list[int]:
    """Return the size of each stored request in bytes."""
    return [len(json.dumps(each.request)) for each in stored if each.request is not None]


parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([None, 0.5]),
        "max_output_tokens": st.sampled_from([None, 20]),
        "tools": st.sampled_from([(), (ADD,)]),
    }
)


@settings(max_examples=15)
@given(asked=st.lists(st.tuples(parameters, st.booleans(), st.booleans()), min_size=3, max_size=6))
def test_a_call_stores_what_it_adds_and_shows_all_of_it(
    asked: list[tuple[dict[str, Any], bool, bool]],
) -> None:
    """Answers and results appear where they were journaled, by reference.

    Calls use different parameters, some are answered by a fallback, and some add no message.
    """
    whole, grown = list(BEGINNING), MessageLog(BEGINNING)
    seen: list[list[CallRecord]] = []
    answer = Step(text="I add.", tool_calls=[CALL])
    steps = [Step(status=404) if fails else answer for *_, fails in asked]

    async def story(asking: Asking) -> None:
        asking.provider.script("second", Step(text="a word"), repeat_last=True)
        for log in (whole, grown):
            asking.begin()
            asking.provider.script("first", *steps)
            for turn, (about, adds, _) in enumerate(asked):
                await converse(asking, log, turn, adds=adds, **about)
            seen.append(records(asking))

    told(story, chain(PRICED, priced("second", temperature=0.9)))

    plain, added = seen
    assert [each.request_hash for each in plain] == [each.request_hash for each in added]
    assert list(grown) == whole
    root = None
    for at, (one, other) in enumerate(zip(plain[1:], added[1:], strict=True), start=1):
        assert other.request is not None
        assert beginning_of(other.request) == root
        if root is not None:
            assert len(other.request["messages"]) <= 3
            rest = whole_request(other, added[:at], lambda value: value)
            assert rest == _without(one.request)
        elif other.outcome == "result":
            root = other.call_key


def _without(request: Any) -> Any:
    return {name: value for name, value in request.items() if value is not None}


def test_what_a_thousand_calls_store_is_what_they_said() -> None:
    """Storage grows with the text of the conversation and not with its square."""
    text = "word " * 400
    log = MessageLog(BEGINNING)

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(text=text), repeat_last=True)
        for turn in range(60):
            await converse(asking, log, turn, said=text)

    stored = records(told(story, PRICED))

    unique = sum(len(message.content) for message in log)
    taken = sum(sizes(stored)) + sum(len(json.dumps(each.value)) for each in stored)
    assert taken <= 1.3 * unique


def test_a_run_that_is_executed_again_goes_on_with_the_same_conversation() -> None:
    """Replayed calls are not made again, and later calls store only new messages."""
    made: list[int] = []
    log = MessageLog(BEGINNING)

    async def story(asking: Asking) -> None:
        scripted(asking)
        before = MessageLog(BEGINNING)
        for turn in range(TURNS):
            await converse(asking, before, turn)
        made.append(len(asking.provider.arrivals))
        asking.begin(asking.run.journal)
        for turn in range(TURNS + 1):
            await converse(asking, log, turn)

    asked = told(story, PRICED)

    assert len(asked.provider.arrivals) == made[0] + 1
    (last,) = asked.run.journal.requests.values()
    assert beginning_of(last) == "step/turn/0"
    assert last["after"]["messages"] == len(log) - 4


def test_a_changed_conversation_is_stored_from_its_beginning() -> None:
    """A call stores the whole conversation if it differs from the stored one."""
    changed = MessageLog((BEGINNING[0], replace(BEGINNING[1], content="Count to few.")))

    async def story(asking: Asking) -> None:
        scripted(asking)
        await converse(asking, MessageLog(BEGINNING), 0)
        asking.begin(asking.run.journal)
        for turn in range(2):
            await converse(asking, changed, turn)

    asked = told(story, PRICED)

    whole = [request for request in asked.run.journal.requests.values() if "after" not in request]
    assert whole
    assert len(whole[-1]["messages"]) > 3


def test_a_log_hashes_and_counts_what_is_new() -> None:
    """A log with another first message or fewer messages is read from the start."""
    call = ToolCall(id="c", name="add", arguments="{}")
    log, other = MessageLog(BEGINNING), MessageLog(BEGINNING)
    first = log.hashed("a", 2).hexdigest()
    log.add(Message(role="assistant", content="\u00e9", tool_calls=(call,)))
    other.add(log[2])

    assert log.hashed("a", 3).hexdigest() == other.hashed("a", 3).hexdigest() != first
    assert log.hashed("a", 2).hexdigest() == first
    assert log.hashed("b", 2).hexdigest() != first
    assert log.size_bytes == other.size_bytes > sum(len(one.content) for one in log)

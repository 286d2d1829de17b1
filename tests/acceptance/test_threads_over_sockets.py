"""Threads of an agent over real sockets: a service and a streaming provider."""

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.threads import AGENT, ThreadClient, prompts


@pytest.mark.req("004/chat", "004/one-path")
async def test_a_message_is_answered_by_a_run_with_the_chat_before_it(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The answer is the result of the run, and the next question includes the chat before it."""
    await provider.script("(first)", [Step(text="Hello."), Step(text="Forty-two.")])
    thread = await ThreadClient.begin(http, "first")

    turn = await thread.answer(content="Hi (first)")
    await thread.answer(content="6 times 7?")
    said = await thread.messages()

    assert turn["run"]["kind"] == "graph"
    assert turn["user"]["created_at"] is not None
    assert turn["assistant"]["created_at"] is not None
    assert [(one["role"], one["content"], one["status"]) for one in said] == [
        ("user", "Hi (first)", None),
        ("assistant", "Hello.", "completed"),
        ("user", "6 times 7?", None),
        ("assistant", "Forty-two.", "completed"),
    ]
    assert [one["parent_id"] for one in said] == [None, *(one["message_id"] for one in said[:3])]
    assert said[1]["run_id"] == turn["run"]["run_id"]
    assert (turn["user"]["message_id"], turn["assistant"]["message_id"]) == (
        said[0]["message_id"],
        said[1]["message_id"],
    )
    assert await prompts(provider, "(first)") == [
        ["Hi (first)"],
        ["Hi (first)", "Hello.", "6 times 7?"],
    ]


@pytest.mark.req("004/chat")
async def test_a_response_shows_the_messages_as_the_thread_lists_them(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Whether the process reads them or knows them from the run that it has just executed."""
    call = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
    steps = [Step(text=f"Answer {number}.") for number in range(3)]
    steps += [Step(tool_calls=[call]), Step(text="42."), Step(text="Done.")]
    await provider.script("(shown)", [*steps, Step(text="Again."), Step(status=400)])
    agent = {**AGENT, "tools": ["calculator"]}
    thread = await ThreadClient.begin(http, "shown", agent=agent)
    http.headers["Prefer"] = "wait=60"

    turns = [await thread.post(content=f"{number}? (shown)") for number in range(5)]
    turns += [await thread.post(f"{turns[-1]['assistant']['message_id']}/retry")]
    turns += [await thread.post(content="Fail.")]

    listed = {one["message_id"]: one for one in await thread.messages()}
    shown = [turn[role] for turn in turns for role in ("user", "assistant") if turn[role]]
    retried = turns[4]["assistant"]["message_id"]
    assert [one["status"] for one in shown if one["run_id"]] == ["completed"] * 6 + ["failed"]
    assert [one for one in shown if one["message_id"] != retried] == list(listed.values())
    assert len(turns[5]["assistant"]["siblings"]) == 2


@pytest.mark.req("004/chat")
async def test_an_edited_message_begins_a_branch_of_its_own(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The old branch stays; any message selects its branch, and the newest is the default."""
    texts = ["One.", "Two.", "Deux.", "Trois."]
    await provider.script("(edit)", [Step(text=text) for text in texts])
    thread = await ThreadClient.begin(http, "edit")
    await thread.answer(content="1? (edit)")
    second = await thread.answer(content="2?")

    edited = await thread.answer(f"{second['user']['message_id']}/edit", content="2, in French?")
    await thread.answer(content="3?")

    french = ["1? (edit)", "One.", "2, in French?", "Deux.", "3?", "Trois."]
    assert await thread.contents() == french
    assert await thread.contents(leaf=edited["user"]["message_id"]) == french
    old = await thread.messages(leaf=second["user"]["message_id"])
    assert [one["content"] for one in old] == ["1? (edit)", "One.", "2?", "Two."]
    both = [second["user"]["message_id"], edited["user"]["message_id"]]
    assert old[2]["siblings"] == edited["user"]["siblings"] == both
    assert (await prompts(provider, "(edit)"))[2:] == [
        ["1? (edit)", "One.", "2, in French?"],
        ["1? (edit)", "One.", "2, in French?", "Deux.", "3?"],
    ]
    whole = await thread.messages(tree="true")
    assert len(whole) == 8
    assert {one["content"] for one in whole} == {None}


@pytest.mark.req("004/chat")
async def test_an_answer_is_tried_again_beside_the_first(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The retry can name the answer or the question, and the model gets the same prompt."""
    await provider.script("(retry)", [Step(text=text) for text in ("Tea.", "Coffee.", "Milk.")])
    thread = await ThreadClient.begin(http, "retry")
    first = await thread.answer(content="Tea or coffee? (retry)")

    again = await thread.answer(f"{first['assistant']['message_id']}/retry")
    third = await thread.answer(f"{first['user']['message_id']}/retry")

    answers = [turn["assistant"]["message_id"] for turn in (first, again, third)]
    assert third["assistant"]["siblings"] == answers
    assert again["user"] is None
    assert await thread.contents() == ["Tea or coffee? (retry)", "Milk."]
    assert await thread.contents(leaf=answers[0]) == ["Tea or coffee? (retry)", "Tea."]
    assert await prompts(provider, "(retry)") == [["Tea or coffee? (retry)"]] * 3


@pytest.mark.req("004/chat")
async def test_an_answer_that_had_come_to_its_end_is_asked_to_go_on(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The next message follows the added assistant message."""
    await provider.script("(more)", [Step(text=text) for text in ("A, B.", "C, D.", "Z.")])
    thread = await ThreadClient.begin(http, "more")
    first = await thread.answer(content="The alphabet? (more)")

    more = await thread.answer(f"{first['assistant']['message_id']}/continue")
    await thread.answer(content="The last?")

    assert more["assistant"]["parent_id"] == first["assistant"]["message_id"]
    assert await thread.contents() == ["The alphabet? (more)", "A, B.", "C, D.", "The last?", "Z."]
    assert (await prompts(provider, "(more)"))[1:] == [
        ["The alphabet? (more)", "A, B.", "Go on."],
        ["The alphabet? (more)", "A, B.", "Go on.", "C, D.", "The last?"],
    ]


@pytest.mark.req("004/chat")
async def test_an_answer_that_a_limit_halted_goes_on_for_the_rest_of_its_cost(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The new run imports the completed work of the halted one, so no call is made twice."""
    call = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
    steps = [Step(tool_calls=[call]), Step(text="I could not look."), Step(text="It is 42.")]
    await provider.script("(halted)", steps)
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
    thread = await ThreadClient.begin(http, "halted", agent=agent)
    halted = await thread.answer(content="6*7? (halted)", budget={"max_tool_calls": 0})
    assert halted["run"]["status"] == "halted"
    assert await thread.contents() == ["6*7? (halted)", "I could not look."]

    action = f"{halted['assistant']['message_id']}/continue"
    whole = await thread.answer(action, budget={"max_tool_calls": 5})

    assert whole["run"]["status"] == "completed", whole["run"]
    ids = [turn["assistant"]["message_id"] for turn in (halted, whole)]
    assert whole["assistant"]["siblings"] == ids
    assert await thread.contents() == ["6*7? (halted)", "It is 42."]
    assert len(await provider.arrivals("(halted)")) == 3
    assert (whole["run"]["usage"]["llm_calls_small"], whole["run"]["usage"]["tool_calls"]) == (1, 1)


@pytest.mark.req("004/chat", "003/FR3.4")
async def test_an_answer_may_come_as_a_stream_of_its_events(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The location header names the run, whose events can be read again there."""
    await provider.script("(stream)", [Step(text="Streaming is fun.", chunk_chars=4)])
    thread = await ThreadClient.begin(http, "stream")

    headers, seen = await thread.events(content="Say it (stream)")
    again = await http.get(
        f"{headers['location']}/events?limit=1000", headers={"Accept": "application/json"}
    )

    assert headers["content-type"].startswith("text/event-stream")
    assert seen[-1]["type"] == "run.completed"
    assert [one["seq"] for one in seen] == list(range(1, len(seen) + 1))
    assert again.json()["events"] == seen
    text = ""
    for one in seen:
        if one["type"] == "content_chunk":
            text = text[: one["data"]["offset"]] + one["data"]["content"]
    assert text == "Streaming is fun."
    assert (await thread.contents())[-1] == text


@pytest.mark.req("004/chat", "003/FR3.4")
async def test_a_stream_that_was_cut_off_goes_on_where_its_request_is_repeated(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The stream continues after the last seen event, and no message or answer is duplicated."""
    await provider.script("(cut)", [Step(text="Streaming is fun.", chunk_chars=4)])
    thread = await ThreadClient.begin(http, "cut")
    _, seen = await thread.events(content="Say it (cut)", run_id="cut-1")

    for last in (0, 3, len(seen) - 1):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        body = {"content": "Say it (cut)", "run_id": "cut-1"}
        again = await http.post(f"{thread.path}/messages", json=body, headers=headers)
        ids = [line[4:] for line in again.text.splitlines() if line.startswith("id: ")]
        assert ids == [str(event["seq"]) for event in seen[last:]]
    assert len(await thread.messages(tree="true")) == 2
    assert len(await provider.arrivals("(cut)")) == 1


@pytest.mark.req("004/chat")
@pytest.mark.parametrize("action", ["send", "edit", "retry", "continue"])
async def test_a_message_may_be_waited_for_until_its_answer_is_there(
    http: httpx.AsyncClient, provider: FakeProvider, action: str
) -> None:
    """The status is 200 with the answer, or 202 with the current state if it takes longer."""
    held = Step(text="Too long.", chunk_chars=3, after_events=2, then="hold")
    marker = f"(wait-{action})"
    await provider.script(marker, [Step(text="First."), Step(text="Second."), held])
    thread = await ThreadClient.begin(http, f"wait-{action}")
    first = await thread.answer(content=f"Well? {marker}")
    user, answer = first["user"]["message_id"], first["assistant"]["message_id"]
    paths = {
        "edit": f"/{user}/edit",
        "retry": f"/{answer}/retry",
        "continue": f"/{answer}/continue",
    }
    path = f"{thread.path}/messages{paths.get(action, '')}"
    body = {"content": f"Again {marker}"} if action in ("send", "edit") else {}

    ended = await http.post(path, json=body, headers={"Prefer": "wait=20"})
    if action == "send":
        body["parent_id"] = ended.json()["assistant"]["message_id"]
    early = await http.post(path, json=body, headers={"Prefer": "wait=1"})
    await provider.release()

    turn = ended.json()
    assert (ended.status_code, ended.headers["preference-applied"]) == (200, "wait=20")
    assert (turn["assistant"]["content"], turn["assistant"]["status"]) == ("Second.", "completed")
    assert turn["run"]["status"] == "completed"
    assert turn["run"]["result"]["outputs"]["agent"]["default"] == "Second."
    assert (early.status_code, early.json()["assistant"]["status"]) == (202, "running")
    await thread.ended(early.json()["run"]["run_id"])


@pytest.mark.req("004/chat")
async def test_a_request_that_is_repeated_makes_no_second_answer(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The idempotency key or run ID identifies it; another request with the key is refused."""
    await provider.script("(twice)", [Step(text="Once.")], repeat_last=True)
    thread = await ThreadClient.begin(http, "twice")

    first = await thread.post(content="Say (twice)", key="k")
    repeated = await thread.post(content="Say (twice)", key="k")
    await thread.ended(first["run"]["run_id"])
    named = await thread.post(content="More (twice)", run_id="twice-2")
    await thread.ended("twice-2")
    renamed = await thread.post(content="More (twice)", run_id="twice-2")
    other = await thread.send(content="Say something else (twice)", key="k")

    assert repeated["assistant"]["message_id"] == first["assistant"]["message_id"]
    assert repeated["run"]["run_id"] == first["run"]["run_id"]
    assert named["user"]["message_id"] == renamed["user"]["message_id"]
    assert len(await thread.messages(tree="true")) == 4
    assert len(await provider.arrivals("(twice)")) == 2
    assert (other.status_code, other.json()["type"]) == (
        422,
        "urn:caseworker:problem:idempotency-mismatch",
    )


@pytest.mark.req("004/cancel-early", "004/chat")
@pytest.mark.parametrize("action", ["send", "edit", "retry", "continue", "continue a halted one"])
@pytest.mark.parametrize("when", ["before", "while", "after"])
async def test_every_action_is_stopped_whenever_the_cancel_comes(
    http: httpx.AsyncClient, provider: FakeProvider, action: str, when: str
) -> None:
    """The cancel may come before the run, during the answer, or after its end without effect."""
    name = f"{action}-{when}".replace(" ", "-")
    held = Step(text="A long answer that is never whole.", chunk_chars=4, after_events=3)
    last = Step(text="Whole.") if when == "after" else held
    first = Step(hang=True) if "halted" in action else Step(text="First.")
    await provider.script(f"({name})", [first, last])
    thread = await ThreadClient.begin(http, name)
    turn = await thread.post(content=f"Say ({name})")
    if "halted" in action:
        await provider.wait_for_arrivals(1, f"({name})")
        await http.delete(f"/runs/{turn['run']['run_id']}")
    await thread.ended(turn["run"]["run_id"])
    user, answer = turn["user"]["message_id"], turn["assistant"]["message_id"]
    path = {"send": "", "edit": f"{user}/edit", "retry": f"{answer}/retry"}
    asked = path.get(action, f"{answer}/continue")
    body = {"content": f"Again ({name})"} if action in ("send", "edit") else {}

    if when == "before":
        early = await http.delete(f"/runs/{name}?reason=never mind")
        assert (early.status_code, early.json()["status"]) == (202, None)
    await thread.post(asked, run_id=name, **body)
    if when == "while":
        await provider.wait_for_arrivals(2, f"({name})")
        await http.post(f"{thread.path}/cancel")
    run = await thread.ended(name)
    if when == "after":
        late = await http.post(f"{thread.path}/cancel")
        assert late.json()["runs"] == []
        assert (await http.delete(f"/runs/{name}")).status_code == 200
    await provider.release()

    assert run["status"] == ("completed" if when == "after" else "cancelled")
    assert (await thread.messages())[-1]["status"] == run["status"]
    assert len(await provider.arrivals(f"({name})")) == (1 if when == "before" else 2)


@pytest.mark.req("004/chat", "004/entry")
async def test_the_next_answer_sees_the_calls_of_tools_behind_the_earlier_ones(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Each call appears once with its result, in order, except the call that submits the answer."""
    marker = "(calls)"
    call = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
    done = {"id": "c2", "name": "finish", "arguments": '{"answer": "It is 42."}'}
    steps = [Step(text="Let me see.", tool_calls=[call]), Step(tool_calls=[done])]
    await provider.script(marker, [*steps, Step(text="Yes."), Step(text="Still.")])
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
    thread = await ThreadClient.begin(http, "calls", agent=agent)

    await thread.answer(content=f"6*7? {marker}")
    await thread.answer(content="Sure?")
    await thread.answer(content="And now?")

    sent = [(one.body or {})["messages"] for one in await provider.arrivals(marker, bodies=True)]
    third = sent[2][1:]
    assert [one["role"] for one in third] == ["user", "assistant", "tool", "assistant", "user"]
    assert third[1]["content"] == "Let me see."
    assert third[1]["tool_calls"] == sent[1][2]["tool_calls"], "as it was sent in its own turn"
    assert third[2] == sent[1][3]
    assert [third[3]["content"], third[4]["content"]] == ["It is 42.", "Sure?"]
    assert sent[3][1:] == [
        *third,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And now?"},
    ]
    assert await thread.contents() == [
        *(f"6*7? {marker}", "It is 42.", "Sure?", "Yes.", "And now?", "Still.")
    ]


@pytest.mark.req("004/chat", "004/entry")
async def test_an_agent_without_tools_is_told_of_earlier_calls_in_words(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Providers refuse tool calls in a history if no tool is offered."""
    marker = "(told)"
    call = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
    steps = [Step(tool_calls=[call]), Step(text="It is 42."), Step(text="Yes.")]
    await provider.script(marker, steps)
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
    thread = await ThreadClient.begin(http, "told", agent=agent)

    await thread.answer(content=f"6*7? {marker}")
    await thread.answer(content="Sure?", agent={**agent, "tools": []})

    last = (await provider.arrivals(marker, bodies=True))[-1].body or {}
    assert "tools" not in last
    assert [one["role"] for one in last["messages"][1:]] == [
        *("user", "assistant", "user", "assistant", "user")
    ]
    assert {tuple(one) for one in last["messages"]} == {("role", "content")}
    assert last["messages"][2]["content"] == 'I call calculator with {"expression": "6 * 7"}'
    assert "42" in last["messages"][3]["content"]

"""Incomplete replies of endpoints, over HTTP: no such answer is a success."""

import json
from typing import Any

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.threads import ThreadClient, chat_start, flow, link

CALL = {"id": "c1", "name": "calculator", "arguments": '{"expression":"6*7"}'}


def agent_run(question: str, **agent: Any) -> dict[str, Any]:
    """Return the body of a run of an agent."""
    definition = {"name": "helper", "prompt": {"system": "Help."}, **agent}
    return {"kind": "agent", "agent": definition, "input": question}


async def asked(client: JsonClient, question: str, **agent: Any) -> dict[str, Any]:
    """Run an agent and return its finished run."""
    return await client.post_run(agent_run(question, **agent), wait_seconds=60)


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_agent_whose_answer_is_cut_off_fails(
    client: JsonClient, provider: FakeProvider, reason: str, stream: bool
) -> None:
    """The run states the reason, and the result keeps the text."""
    marker = f"list {reason} {stream}"
    await provider.script(marker, [Step(text="1, 2, 3, an", finish_reason=reason)])

    run = await asked(client, marker, model={"stream": stream})

    assert run["status"] == "failed"
    assert (run["stop"]["kind"], run["stop"]["error_class"]) == ("error", "ModelAnswerIncomplete")
    assert f"incomplete: {reason}" in run["stop"]["reason"]
    result = run["result"]
    assert (result["success"], result["terminate_reason"]) == (False, "incomplete")
    assert (result["incomplete"], result["raw_content"]) == (reason, "1, 2, 3, an")
    assert result["output"] is None


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_is_handed_in_by_an_incomplete_reply_is_no_success(
    client: JsonClient, provider: FakeProvider, reason: str
) -> None:
    """The tool call's arguments are complete, and the result keeps the answer."""
    done = {"id": "c1", "name": "finish", "arguments": '{"answer": "42"}'}
    await provider.script(f"hand {reason}", [Step(tool_calls=[done], finish_reason=reason)])

    run = await asked(client, f"hand {reason}", tools=["calculator"])

    result = run["result"]
    assert (run["status"], result["success"]) == ("failed", False)
    assert (result["terminate_reason"], result["incomplete"]) == ("incomplete", reason)
    assert (result["raw_content"], result["output"]) == ("42", None)


async def test_a_step_that_asks_a_model_fails_with_an_answer_that_is_cut_off(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The step can allow incomplete answers."""
    await provider.script("say", [Step(text="1, 2", finish_reason="length")], repeat_last=True)
    step: dict[str, Any] = {"id": "s", "type": "llm", "data": {"prompt": "say"}}
    allowed = {**step, "data": {"prompt": "say", "allow_incomplete": True}}

    failed = await client.run_graph({"steps": [step], "edges": []}, wait_seconds=60)
    taken = await client.run_graph({"steps": [allowed], "edges": []}, wait_seconds=60)

    assert failed["status"] == "failed"
    assert failed["result"]["steps"]["s"]["error_class"] == "ModelAnswerIncomplete"
    assert taken["result"]["outputs"]["s"]["default"] == "1, 2"


async def test_an_answer_that_only_calls_a_tool_that_was_not_offered_is_empty(
    client: JsonClient, provider: FakeProvider
) -> None:
    """A step that calls a model fails with it."""
    await provider.script("say more", [Step(tool_calls=[CALL], finish_reason="tool_calls")])
    step = {"id": "s", "type": "llm", "data": {"prompt": "say more"}}

    run = await client.run_graph({"steps": [step], "edges": []}, wait_seconds=60)

    assert run["status"] == "failed"
    assert "(incomplete: empty)" in run["stop"]["reason"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_empty_answer_after_a_tool_is_no_success(
    client: JsonClient, provider: FakeProvider, stream: bool
) -> None:
    """An empty answer is requested once more; a second empty answer ends the agent."""
    marker = f"nothing {stream}"
    await provider.script(marker, [Step(tool_calls=[CALL]), Step(text=""), Step(text="")])

    run = await asked(client, marker, tools=["calculator"], model={"stream": stream})

    assert (run["status"], run["result"]["incomplete"]) == ("failed", "empty")
    assert len(await provider.arrivals(marker)) == 3


@pytest.mark.req("cw/13.calls")
async def test_a_tool_whose_arguments_were_cut_off_is_not_called(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The next prompt reports the uncalled tool, and the agent continues."""
    broken = {"id": "c1", "name": "calculator", "arguments": '{"expression":"6'}
    await provider.script(
        "cut call", [Step(tool_calls=[broken], finish_reason="length"), Step(text="Done.")]
    )

    run = await asked(client, "cut call", tools=["calculator"])

    assert run["status"] == "completed"
    assert "tool_calls" not in run["usage"]
    second = (await provider.arrivals("cut call", bodies=True))[1].body or {}
    told = second["messages"][-1]
    assert (told["role"], "not called" in told["content"]) == ("tool", True)


@pytest.mark.parametrize("reason", ["content_filter", "length"])
async def test_a_summary_that_is_not_complete_replaces_no_messages(
    client: JsonClient, provider: FakeProvider, reason: str
) -> None:
    """The messages are trimmed, and an event gives the reason for the missing summary."""
    said = [
        {"role": role, "content": f"door {number}. " + "filler words " * 60}
        for number in range(6)
        for role in ("user", "assistant")
    ]
    question = f"Which door? {reason}"
    half = Step(text="Half a", finish_reason=reason)
    await provider.script("Summarise this part", [half], repeat_last=True)
    body = agent_run(question, conversation={"max_tokens": 1200, "policy": "summarise"})

    run = await client.post_run({**body, "messages": said}, wait_seconds=60)

    assert run["status"] == "completed"
    events = [event async for event in client.events(run["run_id"])]
    (cut,) = [event for event in events if event["type"].startswith("conversation.")]
    assert cut["type"] == "conversation.trimmed"
    assert cut["data"]["summary_incomplete"] == reason
    assert "Half a" not in (await provider.arrivals(question))[-1].prompt


@pytest.mark.req("cw/13.incomplete", "cw/13.streamed", "004/chat")
async def test_text_of_a_cancelled_answer_stays_in_its_thread(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The message and the next prompt contain the text, marked as incomplete."""
    begun = Step(text="Turn off the water. Then wait.", after_events=4, then="hold")
    await provider.script("(tap)", [begun, Step(text="Undo the screw.")])
    thread = await ThreadClient.begin(http, "tap")
    turn = await thread.post(content="How? (tap)")
    path = f"/runs/{turn['run']['run_id']}/events"
    async with http.stream("GET", path, headers={"Accept": "text/event-stream"}) as stream:
        async for line in stream.aiter_lines():
            if "content_chunk" in line:
                break

    await http.post(f"{thread.path}/cancel")
    await thread.ended(turn["run"]["run_id"])
    (_, stopped) = await thread.messages()
    await thread.answer(content="Go on.")

    assert (stopped["status"], stopped["incomplete"]) == ("cancelled", "cancelled")
    assert stopped["content"].startswith("Turn off")
    assert stopped["content"] in (await provider.arrivals("(tap)"))[-1].prompt


@pytest.mark.parametrize("reason", ["length", "content_filter", "empty"])
async def test_an_answer_that_is_not_complete_can_be_continued(
    http: httpx.AsyncClient, provider: FakeProvider, reason: str
) -> None:
    """Only the incomplete reply is requested again."""
    marker = f"(continue {reason})"
    cut = Step(text="1, 2") if reason == "empty" else Step(text="1, 2", finish_reason=reason)
    cuts = [Step(text=""), Step(text="")] if reason == "empty" else [cut]
    await provider.script(marker, [Step(tool_calls=[CALL]), *cuts, Step(text="1, 2, 3")])
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
    thread = await ThreadClient.begin(http, f"go-on-{reason}", agent=agent)
    failed = await thread.answer(content=marker)

    turn = await thread.answer(f"{failed['assistant']['message_id']}/continue")

    assert (failed["run"]["status"], turn["run"]["status"]) == ("failed", "completed")
    assert (await thread.messages())[-1]["content"] == "1, 2, 3"
    assert len(await provider.arrivals(marker)) == 2 + len(cuts)


@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_a_run_that_goes_on_from_a_reply_that_was_cut_off_may_ask_for_a_longer_one(
    client: JsonClient, provider: FakeProvider, kind: str
) -> None:
    """The new limit of the output applies to it."""
    marker = f"longer {kind}"
    cut = Step(text="1, 2", finish_reason="length")
    await provider.script(marker, [cut, Step(text="1, 2, 3")])
    definition = {"name": "helper", "prompt": {"system": "Help."}}

    def asks(most: int) -> dict[str, Any]:
        if kind == "agent":
            return {"agent": {**definition, "model": {"max_output_tokens": most}}}
        data = {"prompt": marker, "max_output_tokens": most}
        return {"graph": {"steps": [{"id": "s", "type": "llm", "data": data}], "edges": []}}

    asked = {"kind": kind, **({"input": marker} if kind == "agent" else {})}
    failed = await client.post_run({**asked, **asks(300)}, wait_seconds=60)
    again = {"kind": kind, "from": {"run_id": failed["run_id"]}, **asks(500)}
    run = await client.post_run(again, wait_seconds=60)

    assert (failed["status"], run["status"]) == ("failed", "completed"), run
    bodies = [one.body or {} for one in await provider.arrivals(marker, bodies=True)]
    assert [body["max_tokens"] for body in bodies] == [300, 500]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("tools", [False, True])
async def test_an_incomplete_answer_of_a_step_that_asks_a_model_stays_in_its_thread(
    http: httpx.AsyncClient, provider: FakeProvider, reason: str, tools: bool
) -> None:
    """The message is marked as incomplete and appears in the next prompt."""
    marker = f"(step {reason} {tools})"
    cut = Step(text="1, 2, 3, an", finish_reason=reason)
    await provider.script(marker, [cut, Step(text="Done.")])
    ask = {"id": "q", "type": "llm", "data": {"prompt": "${default}"}}
    toolset = {"id": "t", "type": "toolset", "data": {"tools": ["calculator"]}}
    steps = [chat_start(), ask, *([toolset] if tools else [])]
    edges = [flow("chat", "q"), *([link("t", "q")] if tools else [])]
    thread = await ThreadClient.begin(
        http, f"step-{reason}-{tools}".lower(), graph={"steps": steps, "edges": edges}
    )

    failed = await thread.answer(content=marker)
    (_, answer) = await thread.messages()

    assert failed["run"]["status"] == "failed"
    assert (answer["content"], answer["incomplete"]) == ("1, 2, 3, an", reason)


async def test_the_text_of_a_refusal_is_shown_with_the_message(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The answer itself is empty, and its model is the one that the reply names."""
    refused = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    choice = {"index": 0, "message": refused, "finish_reason": "stop"}
    body = {"id": "r", "object": "chat.completion", "model": "m", "choices": [choice]}
    await provider.script("(refused)", [Step(raw_body=json.dumps(body))])
    agent = {"name": "helper", "prompt": {"system": "Help."}, "model": {"stream": False}}
    thread = await ThreadClient.begin(http, "refused", agent=agent)

    await thread.answer(content="How? (refused)")
    (_, answer) = await thread.messages()

    assert (answer["content"], answer["incomplete"]) == (None, "refusal")
    assert answer["model"] == "m"
    assert answer["incomplete_reason"] == "I cannot help with that."


async def test_text_that_came_with_a_call_before_a_cancel_is_told_once(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The answer is incomplete, and the next prompt contains its text once."""
    first = Step(text="First text.", tool_calls=[CALL])
    await provider.script("(second turn)", [first, Step(hang=True), Step(text="Done.")])
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
    thread = await ThreadClient.begin(http, "once", agent=agent)
    turn = await thread.post(content="How? (second turn)")
    await provider.wait_for_arrivals(2, "(second turn)")

    await http.post(f"{thread.path}/cancel")
    await thread.ended(turn["run"]["run_id"])
    (_, stopped) = await thread.messages()
    await provider.release()
    await thread.answer(content="Go on.")

    assert (stopped["content"], stopped["incomplete"]) == ("First text.", "cancelled")
    prompt = (await provider.arrivals("(second turn)", bodies=True))[-1].body or {}
    said = [one["content"] for one in prompt["messages"] if one["role"] == "assistant"]
    assert said == ["First text."]


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_in_a_thread_that_is_cut_off_is_marked(
    http: httpx.AsyncClient, provider: FakeProvider, reason: str
) -> None:
    """The run of the thread fails, and the message keeps the text."""
    marker = f"(cut {reason})"
    await provider.script(marker, [Step(text="1, 2, an", finish_reason=reason)])
    thread = await ThreadClient.begin(http, f"cut-{reason}")

    turn = await thread.answer(content=f"Count. {marker}")

    (_, answer) = await thread.messages()
    assert turn["run"]["status"] == answer["status"] == "failed"
    assert (answer["content"], answer["incomplete"]) == ("1, 2, an", reason)

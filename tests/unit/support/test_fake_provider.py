"""The fake provider: it does what it is told and keeps an honest record."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fake_provider import DEFAULT_PLAN, FakeProvider, Step


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        trust_env=False, timeout=150, limits=httpx.Limits(max_connections=None)
    )


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeProvider]:
    """One process for all tests of this module."""
    provider = asyncio.run(FakeProvider().start())
    yield provider
    provider.stop()


@pytest.fixture
async def fake(shared: FakeProvider) -> FakeProvider:
    """The process, without a memory of the tests before."""
    await shared.reset()
    return shared


def _chat(question: str, *, model: str = "m", **options: Any) -> dict[str, Any]:
    content = json.dumps({"question": question})
    return {"model": model, "messages": [{"role": "user", "content": content}], **options}


async def _post(fake: FakeProvider, body: dict[str, Any]) -> httpx.Response:
    async with _client() as client:
        return await client.post(f"{fake.openai_url}/chat/completions", json=body)


def _text(response: httpx.Response) -> str:
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def test_a_question_is_answered_with_the_plan_and_a_chat_with_words(
    fake: FakeProvider,
) -> None:
    """The default serves the case agent and everybody else."""
    asked = await _post(fake, _chat("2+2?"))
    chatted = await _post(fake, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})

    assert json.loads(_text(asked)) == DEFAULT_PLAN
    assert _text(chatted) == "ok"


async def test_the_default_can_be_another(fake: FakeProvider) -> None:
    """For every prompt without a script."""
    await fake.answer_by_default(Step(plan={"actions": []}))

    assert json.loads(_text(await _post(fake, _chat("anything")))) == {"actions": []}


async def test_steps_are_taken_in_order_and_then_the_default(fake: FakeProvider) -> None:
    """A script is spent; only with ``repeat_last`` does its last step stay."""
    steps = [Step(status=429), Step(text="second")]
    await fake.script("spent", steps)
    await fake.script("stays", steps, repeat_last=True)

    spent = [await _post(fake, _chat("spent")) for _ in range(3)]
    stays = [await _post(fake, _chat("stays")) for _ in range(3)]

    assert [answer.status_code for answer in spent] == [429, 200, 200]
    assert json.loads(_text(spent[2])) == DEFAULT_PLAN
    assert _text(stays[2]) == "second"


async def test_the_newest_script_that_fits_prompt_and_model_wins(fake: FakeProvider) -> None:
    """A script may be for one model only."""
    await fake.script("run-1", [Step(text="any")], repeat_last=True)
    await fake.script("run-1", [Step(text="big")], model="big", repeat_last=True)

    assert _text(await _post(fake, _chat("run-1", model="small"))) == "any"
    assert _text(await _post(fake, _chat("run-1", model="big"))) == "big"
    assert {arrival.marker for arrival in await fake.arrivals()} == {"run-1"}


async def test_what_hangs_waits_for_its_release(fake: FakeProvider) -> None:
    """And is recorded as open until then."""
    await fake.script("wait", [Step(hang=True, text="at last")])
    asking = asyncio.create_task(_post(fake, _chat("wait")))
    (waiting,) = await fake.wait_for_arrivals(1, "wait")

    assert (waiting.outcome, waiting.ended_wall) == ("open", None)
    await fake.release()
    assert _text(await asking) == "at last"
    (done,) = await fake.arrivals("wait")
    assert done.outcome == "answered"
    assert done.ended_monotonic is not None
    assert done.ended_monotonic >= done.arrived_monotonic


async def test_a_client_that_leaves_is_seen_leaving(fake: FakeProvider) -> None:
    """While the provider says nothing, and while it sends."""
    await fake.script("hang", [Step(hang=True)])
    await fake.script("dribble", [Step(dribble_seconds=0.05)])

    for marker in ("hang", "dribble"):
        asking = asyncio.create_task(_post(fake, _chat(marker)))
        await fake.wait_for_arrivals(1, marker)
        asking.cancel()
        (left,) = await fake.wait_for_arrivals(1, marker, ended=True)
        assert left.outcome == "client_gone"


@pytest.mark.parametrize("cut", ["before", "middle"])
async def test_a_cut_is_a_broken_connection_and_says_so(fake: FakeProvider, cut: Any) -> None:
    """The client sees an error of the protocol, the record says it was us."""
    await fake.script("cut", [Step(cut=cut)])

    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await _post(fake, _chat("cut"))

    (arrival,) = await fake.wait_for_arrivals(1, "cut", ended=True)
    assert arrival.outcome == "cut"


async def test_a_stream_carries_the_text_in_pieces_and_the_usage_at_the_end(
    fake: FakeProvider,
) -> None:
    """As server-sent events, one chunk an event."""
    await fake.script("stream", [Step(text="a rather long answer", tokens_out=5)])

    answer = await _post(fake, _chat("stream", stream=True))

    *events, done = answer.text.removesuffix("\n\n").split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "a rather long answer"
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert done == "data: [DONE]"


async def test_arrivals_are_numbered_in_order_and_found_by_their_text(fake: FakeProvider) -> None:
    """Call keys and questions are in the record; bodies only when asked for."""
    async with _client() as client:
        for question in ("one", "two"):
            await client.post(
                f"{fake.openai_url}/chat/completions",
                json=_chat(question, seed=3),
                headers={"X-Call-Key": f"key-{question}"},
            )

    first, second = await fake.arrivals()
    assert second.seq == first.seq + 1
    assert (first.question, first.call_key, first.body) == ("one", "key-one", None)
    (found,) = await fake.arrivals("two", bodies=True)
    assert found.body is not None
    assert found.body["seed"] == 3


async def test_requests_at_once_are_all_recorded(fake: FakeProvider) -> None:
    """They are under way together, none is lost."""
    await fake.answer_by_default(Step(hang=True))
    async with _client() as client:
        url = f"{fake.openai_url}/chat/completions"
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(client.post(url, json=_chat(f"{n}"))) for n in range(50)]
            await fake.wait_for_arrivals(50)
            await fake.release()

    assert {task.result().status_code for task in asking} == {200}
    arrivals = await fake.arrivals()
    assert len({arrival.question for arrival in arrivals}) == 50
    assert {arrival.outcome for arrival in arrivals} == {"answered"}


async def test_waiting_for_too_many_arrivals_ends() -> None:
    """With an error instead of a hanging test; and the process ends with its owner's pipe."""
    async with FakeProvider() as fake:
        with pytest.raises(TimeoutError, match="0 arrivals instead of 1"):
            await fake.wait_for_arrivals(1, timeout_seconds=0.05)

        stdin = fake.process._running().stdin
        assert stdin is not None
        stdin.close()
        assert await fake.process.wait() == 0

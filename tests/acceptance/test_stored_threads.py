"""Threads store each message once; erased and deleted messages do not affect active runs."""

import random
from itertools import pairwise
from typing import Any

import httpx
import psycopg
import pytest

from caseworker.platform.postgres.connections import driver_url
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.pages import ROOT
from tests.support.service import ServiceProcess, model_settings
from tests.support.threads import ThreadClient, prompts

LETTERS = 4_000
TURNS = 60
MOST_COPIES = 3
"""Bytes that a turn stores for a byte of its question and answer, with all rows of its run."""
TABLES = ("runs", "calls", "events", "messages", "threads", "stored_runs")
TOOL = {"id": "call-1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
RESULT = '{"value":"42","expression":"6 * 7","exact":true}'
AGENT = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}


def text_of(number: int) -> str:
    """Return a text of English words, another one for each number."""
    words = sorted(set((ROOT / "README.md").read_text().split()))
    return " ".join(random.Random(number).choices(words, k=LETTERS))[:LETTERS]


def stored_bytes(url: str) -> int:
    """Return the size of the columns of all rows of runs and threads, in bytes."""
    with psycopg.connect(driver_url(url)) as connection:
        sizes = (
            connection.execute(f"SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {table} t")  # noqa: S608
            for table in TABLES
        )
        return sum((each.fetchone() or (0,))[0] for each in sizes)


async def test_a_turn_of_a_long_chat_stores_as_much_as_the_first(
    database_url: str, provider: FakeProvider
) -> None:
    """A run stores its own question and answer a few times, and nothing of the chat before it."""
    answers = [text_of(-number) for number in range(1, TURNS + 1)]
    await provider.script("(long)", [Step(text=text) for text in answers])
    service = ServiceProcess(database_url, settings=model_settings(provider.openai_url))
    async with service, httpx.AsyncClient(timeout=150, trust_env=False) as http:
        http.base_url = service.url
        thread = await ThreadClient.begin(http, "long")
        sizes = [stored_bytes(database_url)]
        for number in range(TURNS):
            asked = f"(long) {text_of(number)}" if number == 0 else text_of(number)
            turn = await thread.answer(content=asked)
            assert turn["run"]["status"] == "completed"
            if number in (19, 39, 59):
                sizes.append(stored_bytes(database_url))
        said = await thread.contents()

    first, *_, last = (after - before for before, after in pairwise(sizes))
    assert said[1::2] == answers
    assert last < 1.1 * first
    assert sizes[-1] - sizes[0] < MOST_COPIES * 2 * LETTERS * TURNS


@pytest.mark.parametrize("how", ["erased", "deleted"])
async def test_an_answer_is_taken_over_with_the_prompt_of_its_first_execution(
    database_url: str, provider: FakeProvider, how: str
) -> None:
    """An earlier message that is erased or deleted changes no prompt and repeats no call."""
    await provider.script("(gone)", [Step(text="First answer.")])
    service = ServiceProcess(database_url, settings=model_settings(provider.openai_url))
    async with service, httpx.AsyncClient(timeout=150, trust_env=False) as http:
        http.base_url = service.url
        thread = await ThreadClient.begin(http, "gone", agent=AGENT)
        first = await thread.answer(content="Hi (gone)")
        await provider.script("(gone)", [Step(tool_calls=[TOOL]), Step(hang=True)])
        turn = await thread.post(content="6 times 7?")
        await provider.wait_for_arrivals(3, "(gone)")
        if how == "erased":
            gone = await http.delete(f"/runs/{first['run']['run_id']}/record")
        else:
            gone = await http.delete(thread.path)
        service.child.kill()
        await provider.script("(gone)", [Step(text="42")])
        await service.start()
        http.base_url = service.url
        run = await thread.ended(turn["run"]["run_id"])
        await provider.release()
        with psycopg.connect(driver_url(database_url)) as connection:
            kept = connection.execute("SELECT count(*) FROM kept_messages").fetchone()

    heard = await prompts(provider, "(gone)")
    assert gone.status_code == 204
    assert (run["status"], run["attempts"], kept) == ("completed", 2, (0,))
    assert len(heard) == 4, "the call that hung is the only one that is made again"
    assert heard[2] == heard[3]
    assert heard[3][:3] == ["Hi (gone)", "First answer.", "6 times 7?"]


async def test_a_fork_of_an_answer_hears_what_is_left_of_its_thread(
    database_url: str, provider: FakeProvider
) -> None:
    """Without the thread it fails with the reason; its imported calls are not repeated."""
    await provider.script("(fork)", [Step(text="One."), Step(text="Two."), Step(text="Three.")])
    service = ServiceProcess(database_url, settings=model_settings(provider.openai_url))
    async with service, httpx.AsyncClient(timeout=150, trust_env=False) as http:
        http.base_url = service.url
        thread = await ThreadClient.begin(http, "fork")
        first = await thread.answer(content="Hi (fork)")
        second = await thread.answer(content="And? (fork)")
        source = {"run_id": second["run"]["run_id"], "until": "n000002"}
        await http.delete(f"/runs/{first['run']['run_id']}/record")
        whole = (await http.post("/runs", json={"run_id": "left", "from": source})).json()
        left = await thread.ended(whole["run_id"])
        await http.delete(thread.path)
        await http.post("/runs", json={"run_id": "none", "from": source})
        none = await thread.ended("none")

    heard = await prompts(provider, "(fork)")
    assert left["status"] == "completed"
    assert heard[2:] == [["Hi (fork)", "And? (fork)"]]
    assert (none["status"], none["stop"]["error_class"]) == ("failed", "BranchNotFoundError")
    assert "deleted" in none["stop"]["reason"]


async def test_a_trace_shows_the_whole_prompt_of_an_answer(
    database_url: str, provider: FakeProvider
) -> None:
    """It is composed of the messages of the thread, and counts those that were deleted."""
    steps = [Step(text="Hello."), Step(tool_calls=[TOOL]), Step(text="42")]
    await provider.script("(trace)", steps)
    service = ServiceProcess(database_url, settings=model_settings(provider.openai_url))
    async with service, httpx.AsyncClient(timeout=150, trust_env=False) as http:
        http.base_url = service.url
        thread = await ThreadClient.begin(http, "trace", agent=AGENT)
        await thread.answer(content="Hi (trace) joe@example.com")
        turn = await thread.answer(content="6 times 7?")
        path = f"/runs/{turn['run']['run_id']}"
        trace = (await http.get(f"{path}/trace", params={"payloads": True})).json()
        calls = [id_ for id_, one in trace["snapshot"]["nodes"].items() if one["kind"] == "llm"]
        details = [(await http.get(f"{path}/calls/{id_}")).json() for id_ in calls]
        await http.delete(thread.path)
        later = (await http.get(f"{path}/calls/{calls[0]}")).json()["request"]

    def contents(request: dict[str, Any]) -> list[str]:
        return [one["content"] for one in request["messages"]]

    whole = ["Help.", "Hi (trace) [email]", "Hello.", "6 times 7?"]
    assert contents(trace["payloads"][calls[0]]["request"]) == whole
    assert contents(details[0]["request"]) == whole
    assert contents(details[1]["request"])[:4] == whole
    assert contents(details[1]["request"])[4:] == ["", RESULT]
    assert (contents(later), later["messages_left_out"]) == (["Help."], 3)
    result = turn["run"]["result"]["outputs"]["agent"]["result"]
    assert (result["messages"][0]["content"], result["messages_left_out"]) == ("6 times 7?", 3)

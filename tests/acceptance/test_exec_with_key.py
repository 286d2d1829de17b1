"""``caseworker exec --key``: commands that call models with a standing key."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import ChildProcess
from tests.support.service import ServiceProcess, model_settings
from tests.support.standing import create_key
from tests.support.tenants import OPERATOR_KEY
from tests.support.usage_oracle import settings_of_prices

AGENT = """
import os, sys
import openai

client = openai.OpenAI(max_retries=0)
for text in sys.argv[2:]:
    name, _, text = text.rpartition("@")
    headers = {"session-id": name} if name else {}
    message = {"role": "user", "content": text}
    try:
        client.chat.completions.create(
            model="small", messages=[message], max_tokens=100, extra_headers=headers
        )
    except openai.BadRequestError as error:
        print("refused", error.code, flush=True)
sys.exit(int(sys.argv[1]))
"""
VARIABLES = """
import json, os
names = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY",
    "CASEWORKER_API_KEY", "CASEWORKER_URL", "CASEWORKER_RUN_ID", "CASEWORKER_RUN_KEY")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
Exec = Callable[..., ChildProcess]


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {
        **model_settings(running_provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }


@pytest.fixture
async def http(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    step = Step(text="short", tokens_in=10, tokens_out=20)
    await provider.script("Hello", [step], repeat_last=True)
    async with service.http(OPERATOR_KEY) as opened:
        yield opened


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """Return the command of an agent: its exit code, then texts, with ``SESSION@`` before them."""
    (tmp_path / "agent.py").write_text(AGENT)
    return [sys.executable, str(tmp_path / "agent.py")]


@pytest.fixture
def started(service: ServiceProcess) -> Iterator[Exec]:
    """Start ``caseworker exec`` with arguments."""
    opened: list[ChildProcess] = []

    def start(*arguments: str, **variables: str) -> ChildProcess:
        env = {"NO_PROXY": "*", "CASEWORKER_URL": service.url, **variables}
        opened.append(ChildProcess.service("exec", *arguments, env=env, name="exec").start())
        return opened[-1]

    yield start
    for each in opened:
        each.close()


async def new_key(http: httpx.AsyncClient, **fields: Any) -> str:
    """Return a new standing key."""
    return str((await create_key(http, OPERATOR_KEY, **fields)).key["key"])


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize("code", [0, 7])
async def test_the_amount_of_this_command_is_printed_and_its_code_returned(
    http: httpx.AsyncClient, started: Exec, agent: list[str], code: int
) -> None:
    """Calls before the command do not count; calls of every session of the command do."""
    key = await new_key(http)
    assert await started("--key", "--", *agent, "0", "Hello", CASEWORKER_KEY=key).wait() == 0
    child = started("--key", "--", *agent, str(code), "Hello", "one@Hello", CASEWORKER_KEY=key)

    assert await child.wait() == code
    [line] = [line for line in child.stderr.splitlines() if "spent" in line]
    assert "in 2 model calls with 60 tokens" in line
    headers = {"Authorization": f"Bearer {key}"}
    total = (await http.get("/gateway/usage", headers=headers)).json()
    assert (total["llm_calls"], total["tokens"], total["halted"]) == (3, 90, None)
    assert f"spent ${total['cost_usd'] * 2 / 3:.6f} " in line
    assert total["cost_usd"] > 0


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize("session", ["", "mine@"])
@pytest.mark.parametrize("code", [0, 7])
async def test_a_halt_of_a_session_of_the_command_gives_exit_code_3(
    http: httpx.AsyncClient, started: Exec, agent: list[str], session: str, code: int
) -> None:
    """Also if the command itself ignores the refusal. The reason is printed."""
    key = await new_key(http, budget={"max_llm_calls": 1})
    text = f"{session}Hello"
    child = started("--key", "--", *agent, str(code), text, text, CASEWORKER_KEY=key)

    assert await child.wait() == 3
    assert child.stdout.splitlines() == ["refused budget"]
    assert "in 1 model calls" in child.stderr
    assert "LLM call limit exceeded: 1 used, limit 1" in child.stderr


@pytest.mark.req("cw/19.key")
async def test_an_earlier_halt_counts_only_if_the_command_fails(
    http: httpx.AsyncClient, started: Exec, agent: list[str]
) -> None:
    """A session that was halted before the command is reported at its start."""
    key = await new_key(http, budget={"max_llm_calls": 1})
    halted = started("--key", "--", *agent, "0", "Hello", "Hello", CASEWORKER_KEY=key)
    assert await halted.wait() == 3
    for texts, code, expected in ((["own@Hello"], 0, 0), (["Hello"], 5, 3)):
        child = started("--key", "--", *agent, str(code), *texts, CASEWORKER_KEY=key)
        assert await child.wait() == expected, child.stderr
        assert "calls without a session are refused" in child.stderr


@pytest.mark.req("cw/19.key")
async def test_a_command_gets_the_urls_and_the_key_and_no_run(
    http: httpx.AsyncClient, service: ServiceProcess, started: Exec, tmp_path: Path
) -> None:
    """The key may be in a file, which may end with a line break."""
    key = await new_key(http)
    (tmp_path / "key").write_text(f"{key}\n")
    command = ("--", sys.executable, "-c", VARIABLES)
    by_file = started("--key-file", str(tmp_path / "key"), *command)
    by_variable = started("--key", *command, CASEWORKER_KEY=key, CASEWORKER_API_KEY="cwk_other")

    assert [await each.wait() for each in (by_file, by_variable)] == [0, 0]
    for child in (by_file, by_variable):
        assert [json.loads(line) for line in child.stdout.splitlines()] == [
            {
                "OPENAI_BASE_URL": f"{service.url}/gateway/openai/v1",
                "ANTHROPIC_BASE_URL": f"{service.url}/gateway/anthropic",
                **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CASEWORKER_API_KEY"), key),
                "CASEWORKER_URL": service.url,
                "CASEWORKER_RUN_ID": None,
                "CASEWORKER_RUN_KEY": None,
            }
        ]
        assert "spent $0.000000 in 0 model calls" in child.stderr
        assert key not in child.stderr


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--key", "cwa_0123", "--", "true"), "Set CASEWORKER_KEY, or use --key-file."),
        (("--key", "--", "true"), "CASEWORKER_KEY must have a standing key"),
        (("--key", "--budget-usd", "1", "--", "true"), "--budget-usd: a standing key has its own"),
        (("--key", "--restarts", "1", "--", "true"), "--restarts: a standing key has its own"),
        (("--key-file", "missing", "--", "true"), "--key-file"),
    ],
)
async def test_a_key_as_an_argument_and_options_of_runs_are_refused(
    service: ServiceProcess, started: Exec, arguments: tuple[str, ...], message: str
) -> None:
    """The command is not started, and no key is repeated."""
    child = started(*arguments)

    assert await child.wait() not in (0, 3)
    assert message in child.stderr
    assert "cwa_0123" not in child.stderr


@pytest.mark.req("cw/19.key")
async def test_other_keys_have_no_usage(http: httpx.AsyncClient, service: ServiceProcess) -> None:
    """The route answers standing keys."""
    refused = await http.get("/gateway/usage")
    opened = (await http.post("/runs", json={"kind": "external"})).json()
    headers = {"Authorization": f"Bearer {opened['access']['key']}"}
    of_run = await http.get("/gateway/usage", headers=headers)

    assert (refused.status_code, of_run.status_code) == (422, 422)
    assert "standing key" in refused.text

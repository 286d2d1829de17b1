"""Client libraries and agents of other projects, unmodified, behind the gateway.

Each client runs in its own environment, as a process. A proxy in front of the service counts its
requests. ``make proofs ARGS="-k agent_clients -rP"`` prints a row of a table for each client.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from bench.environments import peer_environment
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.npm_packages import installed_packages, node
from tests.support.service import ServiceProcess, model_settings

pytestmark = pytest.mark.proof

ASK: Final = Path(__file__).parents[1] / "support" / "agent_clients" / "ask.py"
NPM: Final = Path(__file__).parents[1] / "support" / "npm_agents"
CHAT, RESPONSES, MESSAGES = "chat completions", "Responses", "Messages"
PART: Final = "in part "
WHOLE: Final = PART * 20
CLIENT_SECONDS: Final = 120

_POST = re.compile(rb"POST /gateway\S* HTTP/1\.1\r\n")


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client library or an agent, as a user starts it."""

    name: str
    api: str
    packages: tuple[str, ...]
    """Pinned requirements of its environment; the first one is shown."""
    command: Callable[["Client", str, bool, Path], Awaitable[Sequence[str]]]
    """Returns the command for a question, whether to stream it, and an empty folder."""
    asks: int = 1
    """Number of requests after which it accepts a refusal."""
    asks_again: int = 0
    """Number of requests that it sends after an interrupted stream; all of them are refused."""

    def __repr__(self) -> str:
        return f"{self.name} {self.api}"


async def python_command(client: Client, question: str, stream: bool, _: Path) -> Sequence[str]:
    environment = await peer_environment(*client.packages)
    return [str(environment.python), str(ASK), client.name, question, *["stream"] * stream]


async def _vercel(client: Client, question: str, stream: bool, _: Path) -> Sequence[str]:
    api = {CHAT: "openai", RESPONSES: "responses", MESSAGES: "anthropic"}[client.api]
    ask = node(NPM / "ask.mjs", installed_packages(NPM), api, question)
    return [*ask, *["stream"] * stream]


async def _claude_code(_: Client, question: str, stream: bool, __: Path) -> Sequence[str]:
    program = installed_packages(NPM) / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
    return [*node(program, "-p", question, "--output-format", "json")]


async def codex_command(_: Client, question: str, stream: bool, folder: Path) -> Sequence[str]:
    program = installed_packages(NPM) / "@openai" / "codex" / "bin" / "codex.js"
    provider = {
        "name": '"gateway"',
        "base_url": f'"{(folder / "url").read_text()}"',
        "env_key": '"OPENAI_API_KEY"',
        "wire_api": '"responses"',
        "supports_websockets": "false",
    }
    settings = [f"model_providers.gateway.{name}={value}" for name, value in provider.items()]
    options = [each for one in ('model_provider="gateway"', *settings) for each in ("-c", one)]
    return node(program, "exec", "--skip-git-repo-check", "--json", *options, question)


OPENAI, ANTHROPIC = ("openai==3.57.0",), ("anthropic==2.14.0",)
AGENTS = ("openai-agents==0.24.0",)
PYDANTIC_AI = ("pydantic-ai-slim[openai,anthropic]==2.68.0",)
VERCEL, CLAUDE_CODE, CODEX = ("ai==7.0.173",), ("claude-code==2.1.332",), ("codex==0.171.0",)
LANGCHAIN = ("langchain-openai==1.7.4",)
CLIENTS: Final = [
    *(
        Client(name=name, api=api, packages=packages, command=python_command)
        for name, api, packages in (
            ("openai_chat", CHAT, OPENAI),
            ("openai_responses", RESPONSES, OPENAI),
            ("anthropic", MESSAGES, ANTHROPIC),
            ("openai_agents", RESPONSES, AGENTS),
            ("openai_agents_chat", CHAT, AGENTS),
            ("pydantic_ai", CHAT, PYDANTIC_AI),
            ("pydantic_ai_anthropic", MESSAGES, PYDANTIC_AI),
            ("langchain_openai", CHAT, LANGCHAIN),
        )
    ),
    *(
        Client(name="Vercel AI SDK", api=api, packages=VERCEL, command=_vercel)
        for api in (CHAT, RESPONSES, MESSAGES)
    ),
    Client(
        name="Claude Code", api=MESSAGES, packages=CLAUDE_CODE, command=_claude_code, asks_again=1
    ),
    Client(name="Codex", api=RESPONSES, packages=CODEX, command=codex_command, asks_again=1),
]


class CountingProxy(FaultProxy):
    """Counts the model calls that pass, and keeps the bytes for the clients."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(upstream)
        self.posts = 0
        self.received = b""
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return "http://{}:{}".format(*self.address)

    def _to_server(self, link: Any, data: bytes) -> bytes:
        seen = link.tails.pop(b"", b"") + data
        self.posts += len(_POST.findall(seen))
        link.tails[b""] = seen[max(seen.rfind(b"\r\n"), len(seen) - 200) :]
        return data

    def _to_client(self, link: Any, data: bytes) -> bytes:
        self.received += data
        self._changed.set()
        return data

    async def sent(self, text: bytes) -> None:
        """Wait until the clients have received a text."""
        async with asyncio.timeout(CLIENT_SECONDS):
            while text not in self.received:
                self._changed.clear()
                await self._changed.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    claude = {"provider": "anthropic", "base_url": running_provider.url, "model": "fake-claude"}
    settings = {
        **model_settings(running_provider.openai_url),
        "MODELS_NAMED": json.dumps({"claude": {**claude, "api_key": "sk-x"}}),
    }
    async with ServiceProcess(module_database_url, settings=settings) as running:
        yield running


@pytest.fixture
async def proxy(service: ServiceProcess) -> AsyncIterator[CountingProxy]:
    at = urlsplit(service.url)
    async with CountingProxy((str(at.hostname), at.port or 0)) as opened:
        yield opened


@pytest.fixture
async def http(proxy: CountingProxy, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=150) as opened:
        yield opened


async def start(http: httpx.AsyncClient, client: Client, **fields: Any) -> dict[str, Any]:
    """Create a run whose agent may send any name of a model, or open its next attempt."""
    models = {"*": "claude" if client.api == MESSAGES else "small"}
    body = {"kind": "external", "models": models, **fields}
    posted = await http.post("/runs", json=body)
    return dict(posted.raise_for_status().json())


async def ask(
    client: Client, run: Mapping[str, Any], question: str, folder: Path, *, stream: bool = False
) -> str:
    """Return the answer that a client gets, or ``error:`` and its error."""
    out, err = await execute(client, run, question, folder, stream=stream)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert lines, out + err
    return _outcome(lines)


async def execute(
    client: Client, run: Mapping[str, Any], question: str, folder: Path, *, stream: bool
) -> tuple[str, str]:
    """Return the text on stdout and stderr of a client's process."""
    access = run["access"]
    _prepare(folder, access["openai_base_url"])
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OPENAI_BASE_URL": access["openai_base_url"],
        "OPENAI_API_BASE": access["openai_base_url"],
        "ANTHROPIC_BASE_URL": access["anthropic_base_url"],
        "OPENAI_API_KEY": access["key"],
        "ANTHROPIC_API_KEY": access["key"],
        "ASKED_MODEL": "claude-sonnet-4-5" if client.api == MESSAGES else "gpt-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "NO_PROXY": "*",
    }
    command = await client.command(client, question, stream, folder)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(CLIENT_SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(), err.decode()


def _prepare(folder: Path, base_url: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "url").write_text(base_url)


def _outcome(lines: Sequence[Mapping[str, Any]]) -> str:
    last = lines[-1]
    if "answer" in last:
        return str(last["answer"])
    if last.get("type") == "result":  # Claude Code
        return f"error: {last['result']}" if last["is_error"] else str(last["result"])
    if last.get("type") == "turn.completed":  # Codex
        items = [each["item"] for each in lines if each["type"] == "item.completed"]
        return "".join(each["text"] for each in items if each["type"] == "agent_message")
    return f"error: {last.get('error')}"


async def refused_run(http: httpx.AsyncClient, client: Client, code: str) -> dict[str, Any]:
    """Return a run whose calls are refused with this code."""
    limits = {"budget": {"max_llm_calls": 0}} if code == "budget" else {}
    run = await start(http, client, **limits)
    path = f"/runs/{run['run_id']}"
    match code:
        case "cancelled":
            (await http.delete(path)).raise_for_status()
        case "finished":
            (await http.post(f"{path}/finish", json={"output": 1})).raise_for_status()
        case "superseded":
            await start(http, client, run_id=run["run_id"])
    return run


@pytest.mark.parametrize("client", CLIENTS, ids=repr)
async def test_a_client_stops_after_one_request_and_takes_no_part_for_the_whole(
    client: Client,
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """Its environment variables are all that differs from an ordinary use of it."""
    run = await start(http, client)
    await provider.script("WHOLE", [Step(text=WHOLE)], repeat_last=True)
    await provider.script("SLOW", [Step(text=WHOLE, after_events=4)], repeat_last=True)
    shown = []
    for stream in (False, True):
        proxy.posts = 0
        answer = await ask(client, run, "WHOLE", tmp_path / f"whole-{stream}", stream=stream)
        assert answer.strip() == WHOLE.strip()
        assert proxy.posts == 1
    for code in ("budget", "cancelled", "finished", "superseded"):
        run = await refused_run(http, client, code)
        for stream in (False, True):
            proxy.posts, proxy.received = 0, b""
            answer = await ask(client, run, "REFUSED", tmp_path / f"{code}-{stream}", stream=stream)
            shown.append(f"{code}{' streamed' * stream}: {proxy.posts} {answer[:60]!r}")
            assert answer.startswith("error: "), answer
            assert f'"code":"{code}"'.encode() in proxy.received.replace(b" ", b"")
            assert proxy.posts == client.asks
    assert await provider.count("REFUSED") == 0
    run = await start(http, client)
    proxy.posts, proxy.received = 0, b""
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(client, run, "SLOW", tmp_path / "slow", stream=True))
        await proxy.sent(PART.encode())
        await http.delete(f"/runs/{run['run_id']}")
    shown.append(f"interrupted: {proxy.posts} {asked.result()[:60]!r}")
    sys.stdout.write(f"{client} ({client.packages[0]})\n" + "".join(f"  {s}\n" for s in shown))
    assert asked.result().startswith("error: "), asked.result()
    assert proxy.posts == 1 + client.asks_again
    assert await provider.count("SLOW") == 1

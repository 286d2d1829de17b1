"""Client libraries and agents of other projects, started as their users start them."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.environments import peer_environment
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.npm_packages import installed_packages, node

ASK: Final = Path(__file__).parent / "ask.py"

NPM: Final = Path(__file__).parents[1] / "npm_agents"

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


async def claude_code_session(
    client: Client, question: str, stream: bool, folder: Path
) -> Sequence[str]:
    """Claude Code, which may execute shell commands."""
    program = installed_packages(NPM) / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
    return node(program, "--print", "--allowedTools", "Bash", "--", question)


async def codex_session(client: Client, question: str, stream: bool, folder: Path) -> Sequence[str]:
    """Codex, which may execute shell commands."""
    url = f'openai_base_url="{(folder / "url").read_text()}"'
    return _codex(url, "--dangerously-bypass-approvals-and-sandbox", "--model", "gpt", question)


async def _claude_code(client: Client, question: str, stream: bool, folder: Path) -> Sequence[str]:
    program = installed_packages(NPM) / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
    return [*node(program, "-p", question, "--output-format", "json")]


async def _codex_with_its_provider(
    _: Client, question: str, stream: bool, folder: Path
) -> Sequence[str]:
    """Codex with its built-in provider, which sends more fields than one of its configuration."""
    return _codex(f'openai_base_url="{(folder / "url").read_text()}"', "--json", question)


def _codex(*options: str) -> Sequence[str]:
    program = installed_packages(NPM) / "@openai" / "codex" / "bin" / "codex.js"
    return node(program, "exec", "--skip-git-repo-check", "-c", *options)


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
    Client(
        name="Codex", api=RESPONSES, packages=CODEX, command=_codex_with_its_provider, asks_again=1
    ),
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

    async def wait_for_bytes(self, text: bytes) -> None:
        """Wait until the clients have received a text."""
        async with asyncio.timeout(CLIENT_SECONDS):
            while text not in self.received:
                self._changed.clear()
                await self._changed.wait()


async def start(http: httpx.AsyncClient, client: Client, **fields: Any) -> dict[str, Any]:
    """Create a run whose agent may send any name of a model, or open its next attempt."""
    models = {"*": "claude" if client.api == MESSAGES else "small"}
    body = {"kind": "external", "models": models, **fields}
    posted = await http.post("/runs", json=body)
    return dict(posted.raise_for_status().json())


async def execute(
    client: Client, run: Mapping[str, Any], question: str, folder: Path, *, stream: bool
) -> tuple[str, str]:
    """Return the text on stdout and stderr of a client's process."""
    _, out, err = await finish(client, run, question, folder, stream=stream)
    return out, err


async def finish(
    client: Client, run: Mapping[str, Any], question: str, folder: Path, *, stream: bool
) -> tuple[int, str, str]:
    """Return the exit code of a client's process, and its text on stdout and stderr."""
    access = run["access"]
    _prepare(folder, access["openai_base_url"])
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OPENAI_BASE_URL": access["openai_base_url"],
        "OPENAI_API_BASE": access["openai_base_url"],
        "ANTHROPIC_BASE_URL": access["anthropic_base_url"],
        "OPENAI_API_KEY": access["key"],
        "CODEX_API_KEY": access["key"],
        "ANTHROPIC_API_KEY": access["key"],
        "ASKED_MODEL": "claude-sonnet-4-5" if client.api == MESSAGES else "gpt-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
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
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def interrupt(
    client: Client,
    run: Mapping[str, Any],
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    folder: Path,
    **query: str,
) -> tuple[tuple[str, str], float]:
    """Cancel the run of a client in the middle of a reply.

    Return the client's text on stdout and stderr, and the seconds from the cancel to its end. The
    client asks ``SLOW``. If it streams, it has received the start of the reply. ``query`` are
    parameters of the cancel request.
    """
    await provider.script("SLOW", [Step(text=WHOLE, after_events=4)], repeat_last=True)
    proxy.posts, proxy.received = 0, b""
    async with asyncio.TaskGroup() as group:
        execution = group.create_task(execute(client, run, "SLOW", folder, stream=True))
        await provider.wait_for_arrivals(1, "SLOW")
        (arrival,) = await provider.arrivals("SLOW", bodies=True)
        if (arrival.body or {}).get("stream"):
            await proxy.wait_for_bytes(PART.encode())
        cancelled_at = time.monotonic()
        await http.delete(f"/runs/{run['run_id']}", params=query)
    return execution.result(), time.monotonic() - cancelled_at


def _prepare(folder: Path, base_url: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "url").write_text(base_url)


async def _aider(client: Client, question: str, stream: bool, _: Path) -> Sequence[str]:
    environment = await peer_environment(*client.packages)
    options = ("--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings")
    pace = "--stream" if stream else "--no-stream"
    program = environment.python.with_name("aider")
    return [str(program), "--model", "openai/gpt-5", *options, pace, "--message", question]


async def _codex_with_search(_: Client, question: str, stream: bool, folder: Path) -> Sequence[str]:
    """Codex with a provider of its configuration, and the model that searches the web."""
    fields = {
        "name": '"gateway"',
        "base_url": f'"{(folder / "url").read_text()}"',
        "env_key": '"OPENAI_API_KEY"',
        "wire_api": '"responses"',
        "supports_websockets": "false",
    }
    provider = ", ".join(f"{name} = {value}" for name, value in fields.items())
    settings = 'model_provider="gateway"', "-c", f"model_providers.gateway={{{provider}}}"
    return _codex(*settings, "--json", "--model", "gpt-5", question)


LITELLM: Final = "litellm==1.110.2"

AUTOGEN: Final = ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5")

AGENT_FRAMEWORK: Final = ("agent-framework-openai==1.17.0", "agent-framework-core==1.23.0")

MORE_CLIENTS: Final = [
    *(
        Client(name=name, api=api, packages=packages, command=python_command)
        for name, api, packages in (
            ("langchain_anthropic", MESSAGES, ("langchain-anthropic==1.7.10",)),
            ("crewai", CHAT, ("crewai==1.15.30", LITELLM)),
            ("dspy", CHAT, ("dspy==3.4.1", LITELLM)),
            ("llama_index", CHAT, ("llama-index-llms-openai==0.8.3", "llama-index-core==0.14.25")),
            ("google_adk", CHAT, ("google-adk==2.13.0", LITELLM)),
            ("smolagents", CHAT, ("smolagents[openai]==1.26.0",)),
            ("autogen", CHAT, AUTOGEN),
            ("agent_framework", CHAT, AGENT_FRAMEWORK),
            ("agent_framework_responses", RESPONSES, AGENT_FRAMEWORK),
            ("litellm", CHAT, (LITELLM,)),
        )
    ),
    Client(name="aider", api=CHAT, packages=("aider-chat==0.86.2",), command=_aider),
    Client(
        name="Codex with web search",
        api=RESPONSES,
        packages=("codex==0.171.0",),
        command=_codex_with_search,
    ),
]

"""Run each agent of this folder to its end, over a budget, with a cancel, and with a kill.

    .venv/bin/python examples/external/try_it.py                       # all agents
    .venv/bin/python examples/external/try_it.py langgraph curl/kill   # one agent, and one case

It starts a service and an offline model. The printed lines show the status of the run, the requests
to the model, the replayed calls, the requests that were refused with 400, and how the agent ended.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections.abc import Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import ClientSession
from offline_model import OfflineModel

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
from local_service import connected  # noqa: E402

UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "uv"
PYTHON = (
    UV,
    "run",
    "--quiet",
    "--locked",
    "--only-group",
    "frameworks",
    "--project",
    HERE,
    "python",
)
"""Python in an environment with the frameworks, which the first use creates."""
AGENTS = {
    "langgraph": (*PYTHON, HERE / "langgraph_agent.py"),
    "pydantic_ai": (*PYTHON, HERE / "pydantic_ai_agent.py"),
    "openai_agents": (*PYTHON, HERE / "openai_agents_agent.py"),
    "vercel_ai": ("node", HERE / "vercel-ai" / "agent.mjs"),
    "curl": (HERE / "curl_agent.sh",),
    "claude_code": (HERE / "claude_code.sh",),
}
"""Commands of the agents."""
ALIASES = {"claude_code": "claude"}
"""Configured names of the models of agents; the model of all other ones is ``small``."""
CASES = ("end", "budget", "cancel", "kill")
HEADING = "agent          case    status     model  replayed  refused  end of the agent"
PRIVATE = ("ANTHROPIC_", "CASEWORKER_", "CLAUDE_", "LANGCHAIN_", "LANGSMITH_", "OPENAI_")
"""Beginnings of variables that the agents do not get from the caller."""
_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w+Error)(?: \[\w+\])?:", re.MULTILINE)
_REFUSED = re.compile(r"http_request_duration_seconds_count\{.*status=\"400\"\} (\d+)")


@dataclass(frozen=True, slots=True)
class Trial:
    """An agent, and the service and the model with which it runs."""

    agent: str
    service: str
    """Address of the service."""
    model: OfflineModel
    http: ClientSession
    folder: Path
    """Working directory of the agent."""

    async def run(self, case: str) -> str:
        """Run the agent in an external run, and return a line with the results."""
        is_interrupted = case in ("cancel", "kill")
        self.model.requests.clear()
        self.model.answers = 1 if is_interrupted else None
        refused = await self._refused()
        body = {
            "kind": "external",
            "run_id": str(uuid.uuid4()),
            "name": self.agent,
            "models": {"*": ALIASES.get(self.agent, "small")},
            "budget": {"max_llm_calls": 1 if case == "budget" else 5},
        }
        path = f"/runs/{body['run_id']}"
        process = await self._start(await self._post("/runs", body))
        if is_interrupted:
            await _before_end(process, self.model.requested(2))
        if case == "cancel":
            if self.agent not in ("curl", "claude_code"):  # they print only whole answers
                await _before_end(process, _printed(process, b"The rain"))
            await self.http.delete(self.service + path)
        if case == "kill":
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
            self.model.answers = None
            process = await self._start(await self._post("/runs", body))
        printed, errors = (each.decode() for each in await process.communicate())
        found = _ERROR.findall(errors)
        ended = found[-1] if process.returncode and found else f"exit {process.returncode}"
        end = {"error": {"message": ended}} if process.returncode else {"output": printed}
        await self._post(f"{path}/finish", end)
        stream = {"Accept": "text/event-stream"}
        async with self.http.get(f"{self.service}{path}/events", headers=stream) as events:
            await events.read()  # it ends with the run
        async with self.http.get(self.service + path) as reply:
            run = await reply.json()
        replayed = (run["result"] or {}).get("replayed_calls", 0)
        made, refused = len(self.model.requests), await self._refused() - refused
        return (
            f"{self.agent:<14} {case:<7} {run['status']:<10}"
            f" {made:>5} {replayed:>9} {refused:>8}  {ended}"
        )

    async def _start(self, run: dict[str, Any]) -> Process:
        """Start the agent in a process group, with the base URLs and the key of the run."""
        access = run["access"]
        return await create_subprocess_exec(
            *AGENTS[self.agent],
            env={
                **{name: text for name, text in os.environ.items() if not name.startswith(PRIVATE)},
                "OPENAI_BASE_URL": access["openai_base_url"],
                "OPENAI_API_KEY": access["key"],
                "ANTHROPIC_BASE_URL": access["anthropic_base_url"],
                "ANTHROPIC_API_KEY": access["key"],
                "CASEWORKER_RUN_ID": run["run_id"],
                "CLAUDE_CONFIG_DIR": str(self.folder / "claude"),
                "UV_PROJECT_ENVIRONMENT": f"{sys.prefix}/frameworks",
            },
            cwd=self.folder,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.http.post(self.service + path, json=body) as reply:
            document: dict[str, Any] = await reply.json()
            if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:  # the run is changing its status
                await asyncio.sleep(int(reply.headers.get("Retry-After", "1")))
                return await self._post(path, body)
            if not reply.ok and reply.status != HTTPStatus.CONFLICT:  # stopped meanwhile
                raise SystemExit(f"POST {path}: {document}")
            return document

    async def _refused(self) -> int:
        """Return the number of requests that the service has refused with 400 so far."""
        async with self.http.get(f"{self.service}/metrics") as reply:
            return sum(map(int, _REFUSED.findall(await reply.text())))


async def _before_end(process: Process, work: Coroutine[Any, Any, None]) -> None:
    """Wait until some work is done; exit with the output of the process if it ends first."""
    task, ended = asyncio.ensure_future(work), asyncio.ensure_future(process.wait())
    await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        printed = await process.communicate()
        raise SystemExit(b"The agent ended too early:\n" + b"".join(printed))
    ended.cancel()


async def _printed(process: Process, text: bytes) -> None:
    """Wait until a process has printed a text."""
    if process.stdout is not None:
        await process.stdout.readuntil(text)


async def main(chosen: list[str]) -> None:
    """Run the chosen agents and cases."""
    os.environ.pop("CASEWORKER_URL", None)  # it needs a service with its own model
    async with OfflineModel() as model, ClientSession() as http:
        prices = {"price_per_million_in_usd": 1, "price_per_million_out_usd": 2}
        small = {"provider": "openai", "base_url": f"{model.url}/v1", "model": "offline", **prices}
        claude = {"provider": "anthropic", "base_url": model.url, "model": "offline", **prices}
        settings = {
            **{f"MODELS_SMALL_{name.upper()}": str(value) for name, value in small.items()},
            "MODELS_NAMED": json.dumps({"claude": {**claude, "api_key": "unused"}}),
        }
        with connected(settings=settings) as client, tempfile.TemporaryDirectory() as folder:
            print(HEADING)
            for agent in AGENTS:
                trial = Trial(agent, client.settings.base_url, model, http, Path(folder))
                for case in CASES:
                    if not chosen or {agent, f"{agent}/{case}"} & {*chosen}:
                        print(await trial.run(case), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

"""The meaning of a limit of N calls here and in other frameworks.

The package ``agent-budget-semantics`` (PyPI) has a scripted model with a ledger of requests and one
runner for each framework. This module adds a runner for this service. It plays two scripts under
several limits with every runner whose framework is installed: an agent that never stops requesting
a tool, and one that answers in call N. Run it with the Python of an environment that has the
package::

    python -m bench.budget_semantics http://127.0.0.1:8080 18354

The service must use the scripted model: ``MODELS_SMALL_PROVIDER=openai``,
``MODELS_SMALL_BASE_URL=http://127.0.0.1:18354/v1``.
"""

import asyncio
import importlib
import json
import sys
import threading
from typing import Any

import httpx

LIMITS = (3, 4, 5, 8, 10)
MORE_THAN_ENOUGH = 20
OTHERS = (
    "openai_agents",
    "langgraph",
    "langchain",
    "llamaindex",
    "semantic_kernel",
    "autogen",
    "crewai",
    "adk",
    "agno",
    "swarm",
)


async def run(scenario: dict[str, Any], service: str, budget_value: int) -> Any:
    """Play a scenario in this service with a limit of model calls; return a ``RunResult``."""
    agent = {
        "name": "budget",
        "prompt": {"system": "Use tools as needed."},
        "tools": ["calculator"],
    }
    body = {
        "kind": "agent",
        "agent": {**agent, "limits": {"max_turns": None}},
        "input": "Go.",
        "budget": {"max_llm_calls_small": budget_value},
    }
    async with httpx.AsyncClient(base_url=service, timeout=60) as client:
        ended = (await client.post("/runs", json=body, headers={"Prefer": "wait=30"})).json()
    base = importlib.import_module("runners.base")
    return base.RunResult(
        framework="caseworker",
        scenario=scenario["name"],
        budget_param="max_llm_calls_small",
        budget_value=budget_value,
        actual_llm_calls=ended["usage"]["llm_calls_small"],
        actual_tool_calls=ended["usage"]["tool_calls"],
        stopped_by={"completed": "natural", "halted": "budget"}.get(ended["status"], "error"),
        iteration_budget_consumed=ended["usage"]["llm_calls_small"],
        error=(ended.get("stop") or {}).get("reason"),
    )


def script(tool_turns: int, tool: str) -> list[dict[str, Any]]:
    """Return ``tool_turns`` replies that request a tool, followed by an answer."""

    def call(number: int) -> dict[str, Any]:
        arguments = json.dumps({"expression": f"{number}+1"})
        function = {"name": tool, "arguments": arguments}
        return {"id": f"call_{number}", "type": "function", "function": function}

    used = {"prompt_tokens": 100, "completion_tokens": 10}
    asks = [{"content": "", "tool_calls": [call(n)], **used} for n in range(tool_turns)]
    return [*asks, {"content": "Done.", **used}]


async def main(service: str, port: int) -> None:
    """Print a row of Markdown for each framework, script and limit."""
    model = importlib.import_module("mock-llm.server")
    server = model.HTTPServer(("127.0.0.1", port), model.Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scenario = {"name": "limit", "tool_definitions": [{"name": "calculate"}]}
    for framework in ("caseworker", *OTHERS):
        if framework == "caseworker":
            runner, where, tool = run, service, "calculator"
        else:
            module = importlib.import_module(f"runners.runner_{framework}")
            runner, where, tool = module.run, f"http://127.0.0.1:{port}", "calculate"
        cells = []
        for kind in ("endless", "exact"):
            for limit in LIMITS:
                model.reset()
                model.load_script(
                    script(MORE_THAN_ENOUGH if kind == "endless" else limit - 1, tool)
                )
                result = await runner(scenario, where, limit)
                if result.error and "Import failed" in result.error:
                    break
                end = {"natural": "", "budget": " halted"}.get(result.stopped_by, " error")
                cells.append(f"{len(model.LEDGER)}{end}")
        if cells:
            print("|", framework, "|", " | ".join(cells), "|", flush=True)
    server.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""pydantic-ai in a DBOS workflow behind FastAPI; model calls and tool calls are steps."""

import os
from importlib import import_module
from typing import Any

from fastapi import FastAPI

from bench.serving import serve
from bench.sides.plain_agents import Question, build_agents, calculator

dbos: Any = import_module("dbos")
durable: Any = import_module("pydantic_ai.durable_exec.dbos")

if __name__ == "__main__":
    app = FastAPI()
    dbos.DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["DATABASE_URL"],
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    agents = build_agents(dbos.DBOS.step()(calculator), lambda: [durable.DBOSDurability()])

    @dbos.DBOS.workflow()  # type: ignore[untyped-decorator]
    async def answer(name: str, asked: str) -> str:
        """Run an agent durably."""
        result = await agents[name].run(asked)
        return str(result.output)

    @app.post("/agents/{name}/runs")
    async def run(name: str, question: Question) -> dict[str, str]:
        """Run an agent and return its answer."""
        return {"output": await answer(name, question.input)}

    dbos.DBOS.launch()
    serve(app)

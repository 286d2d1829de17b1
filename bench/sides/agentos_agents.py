"""Agno's AgentOS: agents whose runs are stored in Postgres, without telemetry."""

import os
from importlib import import_module
from typing import Any

from bench.serving import serve

agents: Any = import_module("agno.agent")
databases: Any = import_module("agno.db.postgres")
models: Any = import_module("agno.models.openai")
served: Any = import_module("agno.os")


async def calculator(expression: str) -> str:
    """Compute a sum."""
    first, second = expression.split(" + ")
    return str(int(first) + int(second))


if __name__ == "__main__":
    url = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://")
    database = databases.AsyncPostgresDb(id="runs", db_url=url)
    ours = [
        agents.Agent(
            id=name,
            model=models.OpenAIChat(id=name, base_url=os.environ["MODELS_URL"], api_key="none"),
            instructions="Compute with the tool.",
            tools=[calculator],
            db=database,
            telemetry=False,
        )
        for name in ("turns-1", "turns-3")
    ]
    serve(served.AgentOS(agents=ours, telemetry=False).get_app())

"""Agno's AgentOS: a workflow of one computing step, stored in Postgres, without telemetry."""

import os
from importlib import import_module
from typing import Any

from bench.serving import serve

databases: Any = import_module("agno.db.postgres")
workflows: Any = import_module("agno.workflow")
served: Any = import_module("agno.os")


async def compute(asked: Any) -> Any:
    """Compute a sum."""
    first, second = asked.input.split(" + ")
    return workflows.StepOutput(content=str(int(first) + int(second)))


if __name__ == "__main__":
    url = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://")
    workflow = workflows.Workflow(
        id="sum",
        db=databases.AsyncPostgresDb(id="runs", db_url=url),
        steps=[workflows.Step(name="sum", executor=compute)],
        telemetry=False,
    )
    serve(served.AgentOS(workflows=[workflow], telemetry=False).get_app())

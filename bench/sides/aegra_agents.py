"""Aegra: agents of LangChain in one process, without Redis."""

import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.serving import serve

agents: Any = import_module("langchain.agents")
models: Any = import_module("langchain_openai")


async def calculator(expression: str) -> str:
    """Compute a sum."""
    first, second = expression.split(" + ")
    return str(int(first) + int(second))


def _agent(name: str) -> Any:
    model = models.ChatOpenAI(model=name, base_url=os.environ["MODELS_URL"], api_key="none")
    return agents.create_agent(model, [calculator], system_prompt="Compute with the tool.")


one_call = _agent("turns-1")
three_calls = _agent("turns-3")

if __name__ == "__main__":
    graphs = {"turns-1": f"{__file__}:one_call", "turns-3": f"{__file__}:three_calls"}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "aegra.json"
        config.write_text(json.dumps({"graphs": graphs}))
        os.environ |= {
            "AEGRA_CONFIG": str(config),
            "LOG_LEVEL": "ERROR",
            "REDIS_BROKER_ENABLED": "false",
        }
        serve(import_module("aegra_api.main").app)

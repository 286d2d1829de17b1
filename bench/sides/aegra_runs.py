"""Aegra: a LangGraph graph of one step that computes, in one process, without Redis."""

import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

from bench.serving import serve

graphs: Any = import_module("langgraph.graph")


class State(TypedDict, total=False):
    """The input and the output of the graph."""

    asked: str
    answer: str


async def compute(state: State) -> State:
    """Compute a sum."""
    first, second = state["asked"].split(" + ")
    return {"answer": str(int(first) + int(second))}


builder = graphs.StateGraph(State)
builder.add_node("sum", compute)
builder.add_edge(graphs.START, "sum")
graph = builder.compile()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "aegra.json"
        config.write_text(json.dumps({"graphs": {"sum": f"{__file__}:graph"}}))
        os.environ |= {
            "AEGRA_CONFIG": str(config),
            "LOG_LEVEL": "ERROR",
            "REDIS_BROKER_ENABLED": "false",
        }
        serve(import_module("aegra_api.main").app)

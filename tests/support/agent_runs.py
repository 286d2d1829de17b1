"""A run of a graph with a single agent step, and what its model replies."""

from typing import Any

ANSWER = "It is 42, as everybody knows who has read so far, and there is no doubt about it."

CALL = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}


def agent_run(run_id: str, **more: Any) -> dict[str, Any]:
    """Return a run of a graph with a single agent step."""
    agent = {
        "name": "helper",
        "prompt": {"system": "Help with ${topic}."},
        "inputs": {"topic": {"type": "string"}},
        "tools": ["calculator"],
        **more,
    }
    data = {"agent": agent, "inputs": {"topic": "sums"}}
    return {
        "run_id": run_id,
        "kind": "graph",
        "graph": {"steps": [{"id": "a", "type": "agent", "data": data}], "edges": []},
        "inputs": {"default": f"6 times 7? ({run_id})"},
    }

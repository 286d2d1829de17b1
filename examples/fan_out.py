"""Run a graph with three parallel steps and a step that waits for all of them."""

from local_service import connected

WALLS = {"north": "47 * 389", "east": "47 * 120", "south": "40 * 389"}


def calculation(step_id: str, expression: str) -> dict[str, object]:
    """Return a step that computes."""
    return {
        "id": step_id,
        "type": "tool",
        "data": {"tool": "calculator", "args": {"expression": expression}},
    }


GRAPH = {
    "max_parallel": 3,
    "steps": [
        *(calculation(wall, expression) for wall, expression in WALLS.items()),
        calculation("total", "${north.value} + ${east.value} + ${south.value}"),
    ],
    "edges": [
        {"source": wall, "target": "total", "target_handle": wall, "data": {"channel": "flow"}}
        for wall in WALLS
    ],
}

with connected() as client:
    run = client.run_graph(GRAPH, wait_seconds=20)
    for step_id, outputs in run.result.outputs.items():
        print(step_id, outputs["default"]["expression"], "=", outputs["default"]["value"])
    print(run.status)

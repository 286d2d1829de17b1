"""Halt a run by a limit, then resume it as a second run with a higher limit."""

from itertools import pairwise

from local_service import connected

STEPS = {
    "bricks": "47 * 389",
    "cost": "${default.value} * 0.85",
    "tax": "${default.value} * 0.19",
    "rounded": "round(${default.value})",
}
IDS = list(STEPS)
GRAPH = {
    "steps": [
        {"id": name, "type": "tool", "data": {"tool": "calculator", "args": {"expression": text}}}
        for name, text in STEPS.items()
    ],
    "edges": [
        {"source": before, "target": after, "data": {"channel": "flow"}}
        for before, after in pairwise(IDS)
    ],
}

with connected() as client:
    first = client.run_graph(GRAPH, budget={"max_tool_calls": 2}, wait_seconds=20)
    print(first.status, "by", first.stop.dimension, "after", first.stop.used)

    second = client.create_run(
        {"from": {"run_id": first.run_id}, "budget": {"max_tool_calls": 10}}, wait_seconds=20
    )
    outputs = second.result.outputs
    print(second.status, {name: each["default"]["value"] for name, each in outputs.items()})
    print("new tool calls:", second.usage.tool_calls)
    for node_id, node in client.get_trace(second.run_id).snapshot["nodes"].items():
        if node["kind"] == "tool":
            print(node_id, "imported" if "taken_over" in node["metadata"] else "new")

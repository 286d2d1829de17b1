"""Run two agents in a pipeline; the first one has a third agent as a tool."""

import json
import sys

from local_service import HERE, connected

CLERK = {
    "name": "clerk",
    "description": "Knows what is in stock. Ask in words, such as: how many bolts are there?",
    "prompt": {"system": "Look up what you are asked with a tool, then answer in one sentence."},
    "tools": [{"mcp": "inventory", "allow": ["stock"]}],
    "model": {"temperature": 0, "max_output_tokens": 60},
    "limits": {"max_turns": 3},
}
SELLER = {
    "name": "seller",
    "prompt": {"system": "Ask clerk what is in stock, then answer in one short sentence."},
    "tools": [{"agent": CLERK}],
    "model": {"temperature": 0, "max_output_tokens": 60},
    "limits": {"max_turns": 3},
}
WRITER = {
    "name": "writer",
    "prompt": {"system": "Write what you are told as one friendly sentence to ${reader}."},
    "inputs": {"reader": {"type": "string"}},
    "model": {"temperature": 0, "max_output_tokens": 60},
}
GRAPH = {
    "steps": [
        {"id": "answer", "type": "agent", "data": {"agent": SELLER}},
        {
            "id": "write",
            "type": "agent",
            "data": {"agent": WRITER, "inputs": {"reader": "a customer"}},
        },
    ],
    "edges": [{"source": "answer", "target": "write", "data": {"channel": "flow"}}],
}
INVENTORY = {
    "command": sys.executable,
    "args": [str(HERE / "inventory_server.py")],
    "start_timeout_seconds": 60,
}

with connected(
    recording="pipeline.jsonl",
    settings={"TOOLS_MCP_SERVERS": json.dumps({"inventory": INVENTORY})},
) as client:
    run = client.run_graph(
        GRAPH, inputs={"default": "How many bolts are in stock?"}, budget={"max_turns": 8}
    )
    run = client.wait_for_run(run.run_id)
    for step_id in ("answer", "write"):
        print(f"{step_id}: {run.result.outputs[step_id]['default']}")
    print(run.status, "after", run.usage.turns, "turns and", run.usage.tool_calls, "tool call")
    print(client.explain_run(run.run_id).partition("\nWhere the time went")[0])

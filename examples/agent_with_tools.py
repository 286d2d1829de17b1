"""Run an agent with the tools of an MCP server, and print its events as they happen."""

import json
import sys

from local_service import HERE, connected

AGENT = {
    "name": "shopkeeper",
    "prompt": {
        "system": "You sell ${goods}. Look up what you need with one tool, then answer the "
        "customer in one short sentence."
    },
    "inputs": {"goods": {"type": "string"}},
    "tools": [{"mcp": "inventory", "allow": ["price", "stock"]}],
    "model": {"temperature": 0, "max_output_tokens": 80},
    "limits": {"max_turns": 5, "budget": {"max_tool_calls": 4}},
}
INVENTORY = {
    "command": sys.executable,
    "args": [str(HERE / "inventory_server.py")],
    "start_timeout_seconds": 60,
}

with connected(
    recording="agent_with_tools.jsonl",
    settings={"TOOLS_MCP_SERVERS": json.dumps({"inventory": INVENTORY})},
) as client:
    run = client.run_agent(
        AGENT, "How many washers do you have?", inputs={"goods": "bolts, nuts and washers"}
    )
    for event in client.stream_events(run.run_id):
        if event.type == "tool_call_start":
            call = event.data["tool_call"]
            print("calls", call["name"], call["arguments"])
        elif event.type == "tool_call_end":
            print("  got", event.data["result"])
    ended = client.get_run(run.run_id)
    print(ended.status, ended.result.turn_count, "turns:", ended.result.output)

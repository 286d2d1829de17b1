"""The viewer's call tree, run by Node.js."""

import json
import subprocess
from importlib import resources
from typing import Any

from tests.support.npm_packages import node

PROGRAM = """
import { readFileSync } from "node:fs";
const [file, given] = process.argv.slice(1);
const { CallTree } = await import(`data:text/javascript,${encodeURIComponent(readFileSync(file))}`);
const { trace, run, toggle } = JSON.parse(given);
const tree = new CallTree(trace, run);
for (const id of toggle) tree.toggle(tree.byId.get(id));
console.log(JSON.stringify(tree.rows().map((call) => [call.id, call.level, call.status])));
"""


def call(number: int, parent: int | None, kind: str, name: str, **more: Any) -> dict[str, Any]:
    """Return a node of a snapshot."""
    return {
        "node_id": f"n{number}",
        "parent_id": parent and f"n{parent}",
        "kind": kind,
        "name": name,
        "status": "success",
        "start_ts_ms": number,
        "end_ts_ms": number + 1,
        "stop_reason": None,
        "metadata": {},
        **more,
    }


def rows(*nodes: dict[str, Any], status: str = "completed", toggle: tuple[str, ...] = ()) -> Any:
    """Return the ID, level and status of each visible row."""
    file = resources.files("caseworker.ui") / "static" / "call_tree.js"
    snapshot = {
        "nodes": {each["node_id"]: each for each in nodes},
        "root_id": "n1",
        "snapshot_ts_ms": 100,
    }
    trace = {"snapshot": snapshot, "steps": [], "analysis": {"critical_path": []}}
    run = {"run_id": "r", "status": status, "finished_at": "now"}
    given = json.dumps({"trace": trace, "run": run, "toggle": toggle})
    command = node("--input-type=module", "-e", PROGRAM, str(file), given)
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


RETRIED = (
    call(1, None, "system", "run"),
    call(2, 1, "llm", "turn"),
    call(3, 2, "system", "attempt"),
    call(4, 2, "system", "attempt"),
    call(5, 2, "tool", "calculator"),
)


def test_a_tool_call_is_shown_below_the_llm_call_whose_attempts_are_folded() -> None:
    """One click folds everything below the call; the next one shows the attempts as well."""
    shown = [["n1", 1, "completed"], ["n2", 2, "completed"], ["n5", 3, "completed"]]
    attempts = [["n3", 3, "completed"], ["n4", 3, "completed"]]

    assert rows(*RETRIED) == shown
    assert rows(*RETRIED, toggle=("n2",)) == shown[:2]
    assert rows(*RETRIED, toggle=("n2", "n2")) == [*shown[:2], *attempts, shown[2]]


def test_an_approval_that_an_agent_waits_for_is_shown_as_waiting() -> None:
    """Its parent is a finished LLM call; the step of that call is waiting."""
    halted = {"status": "halt", "stop_reason": "It waits for an approval."}
    nodes = (
        call(1, None, "system", "run", **halted),
        call(2, 1, "system", "a", **halted),
        call(3, 2, "llm", "turn"),
        call(4, 3, "system", "approval of pay", **halted),
    )

    assert [status for *_, status in rows(*nodes, status="waiting")] == [
        "waiting",
        "waiting",
        "completed",
        "waiting",
    ]

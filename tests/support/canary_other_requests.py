"""Runs that wait for approvals, that schedules and threads start, and that call webhooks."""

import asyncio
from typing import Any

from tests.support.canary_requests import CanaryRequests
from tests.support.webhook_receiver import Receiver

SCALAR = {"type": "string"}
CHANGES = {"type": "object", "properties": {"note": SCALAR}}


async def send_other_requests(requests: CanaryRequests, receiver: Receiver) -> None:
    """Approve with changed arguments, refuse, schedule, chat and notify, with canaries in each.

    The webhook receiver fails and returns canaries as well.
    """
    text, header = requests.plant("receiver"), requests.plant_one("receiver header", "model key")
    body = text.encode()
    head = f"HTTP/1.1 500 {header}\r\nX-Why: {header}\r\nContent-Length: {len(body)}\r\n\r\n"
    receiver.answer(head.encode() + body)
    await _decide("approved", requests, receiver, decision="approve", arguments={})
    await _decide("refused", requests, receiver, decision="refuse")
    await _call_mcp_server(requests)
    await _run_schedule(requests)
    await _send_message(requests)
    await _wait_for_deliveries(requests, 2)


async def _decide(name: str, requests: CanaryRequests, receiver: Receiver, **decision: Any) -> None:
    """Start a run that asks, send an invalid decision, and then a valid one."""
    message = f"{requests.plant(f'message {name}')} ${{default}}"
    step = {"id": "ask", "type": "approval", "data": {"message": message, "changes": CHANGES}}
    secret = requests.plant_one(f"webhook {name}", "model key")
    body = {
        "kind": "graph",
        "graph": {"steps": [step], "edges": []},
        "inputs": {"default": requests.plant(f"asked {name}")},
        "concurrency_key": requests.plant_one(f"concurrency {name}", "email"),
        "webhook": {"url": f"{receiver.url}&key={secret}"},
    }
    run = await requests.posted("/runs", body)
    path = f"/runs/{run['run_id']}"
    async with asyncio.timeout(150):
        approvals = await _approvals(requests, path)
        while not approvals:
            await asyncio.sleep(0.02)
            approvals = await _approvals(requests, path)
    wrong_text = requests.plant(f"unfit {name}")
    unfit = {"note": [wrong_text], requests.plant_one(f"field {name}", "email"): 1}
    if "arguments" in decision:
        decision["arguments"] = {"note": requests.plant("changed")}
    decision["reason"] = requests.plant_few(f"decided {name}")
    at = f"{path}/approvals/{approvals[0]['approval_id']}"
    for wrong in ({"arguments": unfit}, {"decision": wrong_text}):
        await requests.refuse("POST", at, json={**decision, **wrong})
    assert (await requests.http.post(at, json=decision)).is_success
    other = "refuse" if decision["decision"] == "approve" else "approve"
    await requests.refuse(
        "POST", at, json={"decision": other, "reason": requests.plant_few(f"late {name}")}
    )
    requests.runs[name] = await requests.ended(path)


async def _approvals(requests: CanaryRequests, path: str) -> list[dict[str, Any]]:
    answer = await requests.http.get(f"{path}/approvals")
    return list(answer.json()["approvals"])


async def _call_mcp_server(requests: CanaryRequests) -> None:
    """Let an MCP server answer, fail and break a call, each with canaries."""
    for how in ("answer", "fail", "break"):
        requests.plant(f"mcp {how}")
        data = {"tool": "hostile.confide", "args": {"how": how}}
        graph = {"steps": [{"id": "ask", "type": "tool", "data": data}], "edges": []}
        run = await requests.posted("/runs", {"kind": "graph", "graph": graph})
        requests.runs[f"server {how}"] = await requests.ended(f"/runs/{run['run_id']}")


async def _run_schedule(requests: CanaryRequests) -> None:
    """Let a schedule start a run."""
    body = {
        "kind": "graph",
        "graph": _graph_that_responds("${default}"),
        "inputs": {"default": requests.plant("scheduled input")},
        "metadata": {"note": requests.plant("scheduled metadata")},
    }
    schedule = {"cron": "0 0 1 1 *", "run": body}
    assert (await requests.http.put("/schedules/canaries", json=schedule)).is_success
    run = await requests.posted("/schedules/canaries/run", None)
    requests.runs["scheduled"] = await requests.ended(f"/runs/{run['run_id']}")


async def _send_message(requests: CanaryRequests) -> None:
    """Send a message in a thread."""
    thread = {
        "thread_id": "canaries",
        "title": requests.plant_few("title"),
        "graph": _graph_that_responds("Yes."),
        "inputs": {"extra": requests.plant("thread input")},
        "metadata": {"note": requests.plant("thread metadata")},
    }
    assert (await requests.http.post("/threads", json=thread)).is_success
    turn = await requests.posted("/threads/canaries/messages", {"content": requests.plant("said")})
    requests.runs["talked"] = await requests.ended(f"/runs/{turn['run']['run_id']}")


async def _wait_for_deliveries(requests: CanaryRequests, count: int) -> None:
    """Wait until no delivery is pending; keep the list of deliveries."""
    async with asyncio.timeout(150):
        while True:
            answer = await requests.http.get("/webhooks/deliveries")
            if [each["status"] for each in answer.json()["deliveries"]] == ["dead"] * count:
                break
            await asyncio.sleep(0.02)
    requests.answers.append(answer)


def _graph_that_responds(answer: str) -> dict[str, Any]:
    data = {"tool": "respond", "args": {"answer": answer}}
    return {"steps": [{"id": "say", "type": "tool", "data": data}], "edges": []}

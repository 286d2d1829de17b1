"""Runs that wait for approvals, that schedules and threads start, and that call webhooks."""

import asyncio
from typing import Any

from tests.support.canary_story import Story
from tests.support.webhook_receiver import Receiver

SCALAR = {"type": "string"}
CHANGES = {"type": "object", "properties": {"note": SCALAR}}


async def tell_of_others(story: Story, receiver: Receiver) -> None:
    """Approve with changed arguments, refuse, schedule, chat and notify, with canaries in each.

    The webhook receiver fails and returns canaries as well.
    """
    said, header = story.text("receiver"), story.one("receiver header", "model key")
    body = said.encode()
    head = f"HTTP/1.1 500 {header}\r\nX-Why: {header}\r\nContent-Length: {len(body)}\r\n\r\n"
    receiver.answer(head.encode() + body)
    await _asked("approved", story, receiver, decision="approve", arguments={})
    await _asked("refused", story, receiver, decision="refuse")
    await _told_by_server(story)
    await _scheduled(story)
    await _talked(story)
    await _delivered(story, 2)


async def _asked(name: str, story: Story, receiver: Receiver, **decision: Any) -> None:
    """Start a run that asks, send an invalid decision, and then a valid one."""
    message = f"{story.text(f'message {name}')} ${{default}}"
    step = {"id": "ask", "type": "approval", "data": {"message": message, "changes": CHANGES}}
    secret = story.one(f"webhook {name}", "model key")
    body = {
        "kind": "graph",
        "graph": {"steps": [step], "edges": []},
        "inputs": {"default": story.text(f"asked {name}")},
        "concurrency_key": story.one(f"concurrency {name}", "email"),
        "webhook": {"url": f"{receiver.url}&key={secret}"},
    }
    run = await story.posted("/runs", body)
    path = f"/runs/{run['run_id']}"
    async with asyncio.timeout(150):
        asked = await _questions(story, path)
        while not asked:
            await asyncio.sleep(0.02)
            asked = await _questions(story, path)
    wrong_text = story.text(f"unfit {name}")
    unfit = {"note": [wrong_text], story.one(f"field {name}", "email"): 1}
    if "arguments" in decision:
        decision["arguments"] = {"note": story.text("changed")}
    decision["reason"] = story.few(f"decided {name}")
    at = f"{path}/approvals/{asked[0]['approval_id']}"
    for wrong in ({"arguments": unfit}, {"decision": wrong_text}):
        await story.refuse("POST", at, json={**decision, **wrong})
    assert (await story.http.post(at, json=decision)).is_success
    other = "refuse" if decision["decision"] == "approve" else "approve"
    await story.refuse("POST", at, json={"decision": other, "reason": story.few(f"late {name}")})
    story.runs[name] = await story.ended(path)


async def _questions(story: Story, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await story.http.get(f"{path}/approvals")).json()["approvals"]
    return found


async def _told_by_server(story: Story) -> None:
    """Let an MCP server answer, fail and break a call, each with canaries."""
    for how in ("answer", "fail", "break"):
        story.text(f"mcp {how}")
        data = {"tool": "hostile.confide", "args": {"how": how}}
        graph = {"steps": [{"id": "ask", "type": "tool", "data": data}], "edges": []}
        run = await story.posted("/runs", {"kind": "graph", "graph": graph})
        story.runs[f"server {how}"] = await story.ended(f"/runs/{run['run_id']}")


async def _scheduled(story: Story) -> None:
    """Let a schedule start a run."""
    run = {
        "kind": "graph",
        "graph": _said("${default}"),
        "inputs": {"default": story.text("scheduled input")},
        "metadata": {"note": story.text("scheduled metadata")},
    }
    schedule = {"cron": "0 0 1 1 *", "run": run}
    assert (await story.http.put("/schedules/canaries", json=schedule)).is_success
    begun = await story.posted("/schedules/canaries/run", None)
    story.runs["scheduled"] = await story.ended(f"/runs/{begun['run_id']}")


async def _talked(story: Story) -> None:
    """Send a message in a thread."""
    thread = {
        "thread_id": "canaries",
        "title": story.few("title"),
        "graph": _said("Yes."),
        "inputs": {"extra": story.text("thread input")},
        "metadata": {"note": story.text("thread metadata")},
    }
    assert (await story.http.post("/threads", json=thread)).is_success
    said = await story.posted("/threads/canaries/messages", {"content": story.text("said")})
    story.runs["talked"] = await story.ended(f"/runs/{said['run']['run_id']}")


async def _delivered(story: Story, count: int) -> None:
    """Wait until no delivery is pending; keep the list of deliveries."""
    async with asyncio.timeout(150):
        while True:
            shown = await story.http.get("/webhooks/deliveries")
            if [each["status"] for each in shown.json()["deliveries"]] == ["dead"] * count:
                break
            await asyncio.sleep(0.02)
    story.answers.append(shown)


def _said(answer: str) -> dict[str, Any]:
    data = {"tool": "respond", "args": {"answer": answer}}
    return {"steps": [{"id": "say", "type": "tool", "data": data}], "edges": []}

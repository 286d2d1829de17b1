"""Runs that wait for people, that schedules and threads begin, and that announce their end."""

import asyncio
from typing import Any

from tests.support.canary_story import Story

SCALAR = {"type": "string"}
CHANGES = {"type": "object", "properties": {"note": SCALAR}}
REFUSES = "http://127.0.0.1:9/hook"
"""Where nobody listens: the delivery fails and is kept with its URL."""


async def tell_of_others(story: Story) -> None:
    """Approve with other arguments, refuse, schedule, talk and announce, with canaries in all."""
    await _asked("approved", story, decision="approve", arguments={"note": story.text("changed")})
    await _asked("refused", story, decision="refuse")
    await _scheduled(story)
    await _talked(story)


async def _asked(name: str, story: Story, **decision: Any) -> None:
    """Have a run ask something, and decide it."""
    message = f"{story.text(f'message {name}')} ${{default}}"
    step = {"id": "ask", "type": "approval", "data": {"message": message, "changes": CHANGES}}
    secret = story.one(f"webhook {name}", "model key")
    body = {
        "kind": "graph",
        "graph": {"steps": [step], "edges": []},
        "inputs": {"default": story.text(f"asked {name}")},
        "concurrency_key": story.one(f"concurrency {name}", "email"),
        "webhook": {"url": f"{REFUSES}?key={secret}"},
    }
    run = await story.posted("/runs", body)
    path = f"/runs/{run['run_id']}"
    async with asyncio.timeout(60):
        asked = await _questions(story, path)
        while not asked:
            await asyncio.sleep(0.02)
            asked = await _questions(story, path)
    decision["reason"] = story.few(f"decided {name}")
    at = f"{path}/approvals/{asked[0]['approval_id']}"
    assert (await story.http.post(at, json=decision)).is_success
    story.runs[name] = await story.ended(path)


async def _questions(story: Story, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await story.http.get(f"{path}/approvals")).json()["approvals"]
    return found


async def _scheduled(story: Story) -> None:
    """Have a schedule begin a run."""
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
    """Say something in a thread."""
    thread = {
        "thread_id": "canaries",
        "title": story.few("title"),
        "graph": _said("Yes."),
        "metadata": {"note": story.text("thread metadata")},
    }
    assert (await story.http.post("/threads", json=thread)).is_success
    said = await story.posted("/threads/canaries/messages", {"content": story.text("said")})
    story.runs["talked"] = await story.ended(f"/runs/{said['run']['run_id']}")


def _said(answer: str) -> dict[str, Any]:
    data = {"tool": "respond", "args": {"answer": answer}}
    return {"steps": [{"id": "say", "type": "tool", "data": data}], "edges": []}

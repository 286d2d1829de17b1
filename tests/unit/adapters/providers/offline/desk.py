"""The planner and its tools together: from a question to an answer."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.adapters.providers.offline.provider import OfflineProvider
from app.llm.messages import Message, ModelRequest
from app.tools.arguments import ArgumentChecks
from app.tools.calculator import Calculator
from app.tools.calendar import Calendar
from app.tools.ports import ToolContext
from app.tools.registry import ToolRegistry

NOW = datetime(2025, 1, 15, 12, 0, tzinfo=UTC)
"""A Wednesday."""


class Desk:
    """Asks the provider as a case does, and runs the plan with the real tools."""

    def __init__(self) -> None:
        self._registry = ToolRegistry([Calculator(), Calendar()])
        self._checks = ArgumentChecks(self._registry)
        self._provider = OfflineProvider()
        self._context = ToolContext(run_id="run-1", timezone="UTC", now=NOW)

    async def plan(self, question: str, **more: Any) -> dict[str, Any]:
        """Return the planner's reply to a question; ``more`` joins or replaces what it is told."""
        document = {
            "question": question,
            "today": NOW.date().isoformat(),
            "timezone": "UTC",
            "tools": ["calculator", "calendar", "respond"],
            "evidence": [],
        } | more
        message = Message(role="user", content=json.dumps(document))
        reply = await self._provider.complete("offline", ModelRequest(messages=(message,)))
        plan: dict[str, Any] = json.loads(reply.text)
        return plan

    async def results(self, question: str) -> Sequence[Mapping[str, Any]]:
        """Return what the tools find; the plan must be one that may be carried out."""
        plan = await self.plan(question)
        assert "actions" in plan, plan
        found = []
        for action in plan["actions"]:
            assert self._checks.problem(action["tool"], action["args"]) is None
            tool = self._registry.find(action["tool"])
            assert tool is not None
            found.append(await tool.run(action["args"], self._context))
        assert 1 <= len(found) <= 3
        return found

    async def answer(self, question: str) -> str:
        """Return the values that the tools find, or the codes of their errors."""
        found = await self.results(question)
        return "; ".join(result.get("value", result.get("code")) for result in found)

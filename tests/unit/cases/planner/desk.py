"""The planner and its tools together: from a question to an answer."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from caseworker.models.gateway import Tier
from caseworker.models.ports import Message, ModelRequest
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.ports import ToolContext, ToolResult
from caseworker.tools.registry import ToolRegistry
from caseworker_cases.agent.evidence import CaseEvidence, compose
from caseworker_cases.agent.plan import fill
from caseworker_cases.agent.prompt import CaseTools
from caseworker_cases.planner.provider import OfflineProvider
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.data_fetch_stock import DataFetchStock
from caseworker_cases.tools.dates.calculation import in_words
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.tools.plotter import Plotter
from caseworker_cases.tools.respond import Respond
from tests.unit.tools.stock_support import BlankRenderer, MemorySink

NOW = datetime(2025, 1, 15, 12, 0, tzinfo=UTC)
"""A Wednesday."""


class Desk:
    """Asks the provider as a case does, and runs the plan with the real tools."""

    def __init__(self) -> None:
        prices = PackagedPrices()
        self._registry = ToolRegistry(
            [
                Calculator(),
                Calendar(),
                Respond(),
                DataFetchStock(prices),
                NumericAnalysis(prices),
                Plotter(prices, BlankRenderer()),
            ]
        )
        self.checks = {spec.name: ArgumentCheck(spec) for spec in self._registry.specs()}
        """Checks of the arguments, by tool name."""
        self._provider = OfflineProvider()

    async def plan(self, question: str, **more: Any) -> dict[str, Any]:
        """Return the planner's reply; ``more`` adds or replaces fields of the prompt document."""
        tools = more.pop("tools", None)
        specs = [one for one in self._registry.specs() if tools is None or one.name in tools]
        document = {"question": question, "today": in_words(NOW.date())} | more
        message = Message(role="user", content=json.dumps(document))
        request = ModelRequest(messages=(message,), json_schema=CaseTools(specs).schema)
        reply = await self._provider.complete("offline", request)
        plan: dict[str, Any] = json.loads(reply.text)
        return plan

    async def refusal(self, question: str) -> str:
        """Return the reason of a refusal; fail if the planner returns a plan."""
        plan = await self.plan(question)
        assert list(plan) == ["cannot"], plan
        reason: str = plan["cannot"]
        return reason

    async def actions(self, question: str, **more: Any) -> list[dict[str, Any]]:
        """Return the one to three actions of a plan; fail on a refusal."""
        plan = await self.plan(question, **more)
        assert "actions" in plan, plan
        actions: list[dict[str, Any]] = plan["actions"]
        assert 1 <= len(actions) <= 3
        return actions

    async def results(self, question: str, **more: Any) -> Sequence[Mapping[str, Any]]:
        """Return the results of the planned actions, in order."""
        return [found.result for found in await self.evidence(question, **more)]

    async def evidence(self, question: str, **more: Any) -> list[CaseEvidence]:
        """Plan and execute as a case does; check that the arguments fit the tools."""
        context = ToolContext(run_id="run-1", timezone="UTC", now=NOW, artifacts=MemorySink())
        results: dict[int, ToolResult] = {}
        evidence = []
        for number, action in enumerate(await self.actions(question, **more), start=1):
            args = fill(action["args"], results)
            assert self.checks[action["tool"]].problem(args) is None
            tool = self._registry.find(action["tool"])
            assert tool is not None
            results[number] = await tool.run(args, context)
            evidence.append(
                CaseEvidence(
                    number=number,
                    tier=Tier.SMALL,
                    act_step=1,
                    tool=action["tool"],
                    args=args,
                    result=results[number],
                )
            )
        return evidence

    async def composed(self, question: str, **more: Any) -> str | None:
        """Return the answer that a case would give."""
        answer = compose(await self.evidence(question, **more))
        return None if answer is None else answer.text

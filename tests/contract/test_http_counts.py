"""How many statements a run takes, once its definition has run before."""

import gc
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock, patch

import psycopg
import pytest

from caseworker.models import prices
from caseworker.runs.journal import journal
from caseworker.settings.models import ModelsSettings, SmallModelSettings
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.tenants import OPERATOR_KEY, Tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
AGENT = {
    "name": "helper",
    "prompt": {"system": "Help."},
    "tools": ["calculator"],
    "model": {"stream": False},
}


@pytest.fixture(scope="module")
def sections(running_provider: FakeProvider) -> Mapping[str, Any]:
    """Use a model that has a list price."""
    small = SmallModelSettings(
        provider="openai", base_url=running_provider.openai_url, model="gpt-5-mini"
    )
    return {"models": ModelsSettings(small=small)}


@pytest.mark.parametrize(
    ("steps", "calls"), [([Step(text="42")], 1), ([Step(tool_calls=[CALL]), Step(text="42")], 2)]
)
async def test_a_run_takes_one_statement_for_each_model_call_and_two_more(
    tenants: Tenants,
    running_provider: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[Step],
    calls: int,
) -> None:
    """The first one accepts it, the last one ends it. A local tool needs none."""
    _ignore_delays(monkeypatch)
    await tenants.ask("t", "POST", "/agents", {"agent": AGENT})
    sent = await _statements(tenants, running_provider, "t", steps)

    assert sent == ["INSERT INTO runs", *["WITH owned AS"] * calls, "WITH ended AS"]


@pytest.mark.req("cw/3.accounts")
@pytest.mark.parametrize(
    ("steps", "calls"), [([Step(text="42")], 1), ([Step(tool_calls=[CALL]), Step(text="42")], 2)]
)
async def test_a_quota_takes_no_further_statement_for_a_call(
    tenants: Tenants,
    running_provider: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[Step],
    calls: int,
) -> None:
    """The barrier of a call reserves it, and the next statement of the run settles it."""
    _ignore_delays(monkeypatch)
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    limit = {"max_cost_usd_per_day": 9, "max_cost_usd_per_month": 90}
    (await tenants.client.put("/quotas/q", json=limit, headers=operator)).raise_for_status()
    await tenants.ask("q", "POST", "/agents", {"agent": AGENT})
    sent = await _statements(tenants, running_provider, "q", steps)

    assert [each for each in sent if each.startswith("WITH")] == [
        *["WITH owned AS"] * calls,
        "WITH ended AS",
    ]
    use = (await tenants.ask("q", "GET", "/quotas")).json()["use"]
    assert use["cost_usd_today"] > 0
    assert use["reserved_usd_today"] == 0


def _ignore_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no statement because the machine is slow: no writes between barriers, and no repeats."""
    monkeypatch.setattr(journal.RunJournal, "touch", lambda *_: None)
    monkeypatch.setattr(journal, "PERMISSION_SECONDS", 600)


async def _statements(
    tenants: Tenants, running_provider: FakeProvider, tenant: str, steps: list[Step]
) -> list[str]:
    """Return the first words of each statement of a run."""
    sent: list[str] = []
    execute = psycopg.AsyncConnection[Any].execute

    async def counted(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(" ".join(str(query).split()[:3]))
        return await execute(self, query, *arguments, **options)

    for question in ("first?", "second?"):  # the first run prepares the definition
        await running_provider.script(question, steps)
        run = {"kind": "agent", "agent": {"name": "helper"}, "input": question}
        sent.clear()
        with patch.object(psycopg.AsyncConnection, "execute", counted):
            answer = await tenants.ask(tenant, "POST", "/runs", run, prefer="wait=120")
        assert answer.json()["status"] == "completed", answer.text
    return sent


async def test_a_run_leaves_nothing_for_the_garbage_collector(
    tenants: Tenants, running_provider: FakeProvider
) -> None:
    """Reference cycles would keep the run in memory until a collection, which stalls the loop."""
    await tenants.ask("t", "POST", "/agents", {"agent": AGENT})
    await running_provider.script("collected?", [Step(tool_calls=[CALL]), Step(text="42")])
    run = {"kind": "agent", "agent": {"name": "helper"}, "input": "collected?"}
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        answer = await tenants.ask("t", "POST", "/runs", run, prefer="wait=120")
        gc.collect()
        left = {type(each).__module__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

    assert answer.json()["status"] == "completed", answer.text
    assert not {name for name in left if name.startswith("caseworker.")}


async def test_the_prices_of_a_model_are_searched_once_a_minute(
    tenants: Tenants, running_provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call estimates, reserves and settles its cost from the rates that were found."""
    searched = Mock(wraps=prices._calculation)
    monkeypatch.setattr(prices, "_calculation", searched)
    monkeypatch.setattr(prices, "time", Mock(time=Mock(return_value=1_800_000_000.0)))
    prices._pricing.cache_clear()
    counts = list[int]()
    for question in ("priced?", "priced again?"):
        await running_provider.script(question, [Step(tool_calls=[CALL]), Step(text="42")])
        run = {"kind": "agent", "agent": AGENT, "input": question}
        answer = await tenants.ask("t", "POST", "/runs", run, prefer="wait=120")
        assert float(answer.json()["usage"]["cost_usd"]) > 0, answer.text
        counts.append(searched.call_count)

    assert counts[0] == counts[1] > 0

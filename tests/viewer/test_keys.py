"""The page of a standing key in a browser: its budgets and its sessions, while calls are made."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.support.database import TestServer
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings
from tests.support.standing import Holder, create_key
from tests.viewer.reader import KEY, Reader, Theme
from tests.viewer.story import HOSTILE

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMITS: dict[str, Any] = {"max_completion_tokens": 100, "model": "priced"}
CALL = Step(tokens_in=1, tokens_out=100)
"""A call of a cent."""


PRICED = {
    "provider": "openai",
    "model": "fake-priced",
    "price_per_million_in_usd": 0,
    "price_per_million_out_usd": 100,
}
"""A model whose calls can be made within a budget of dollars."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def story_provider() -> AsyncIterator[FakeProvider]:
    """Start the provider of the service's models."""
    async with FakeProvider() as provider:
        yield provider


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(
    browser: Browser, postgres: TestServer, story_provider: FakeProvider
) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a service of this module, because calls of keys cost something."""
    named = json.dumps({"priced": PRICED | {"base_url": story_provider.openai_url}})
    settings = {"AUTH_BOOTSTRAP_KEY": KEY, "MODELS_NAMED": named}
    settings |= model_settings(story_provider.openai_url)
    with postgres.database() as url:
        async with ServiceProcess(url, settings=settings) as service, service.http(KEY) as client:
            yield client


@dataclass(frozen=True)
class Watched:
    """A standing key with sessions, and the provider of its calls."""

    holder: Holder
    provider: FakeProvider

    @property
    def path(self) -> str:
        """Address of the page of the key."""
        return f"/ui/keys/{self.holder.key['key_id']}"


@pytest_asyncio.fixture(loop_scope="session")
async def watched(http: httpx.AsyncClient, story_provider: FakeProvider) -> AsyncIterator[Watched]:
    """Create a key with three sessions; the budget of one of them is spent."""
    await story_provider.script("WATCHED", [CALL], repeat_last=True)
    budgets = {"budget": {"max_cost_usd": 0.02}, "budget_per_day": {"max_cost_usd": 0.1}}
    plain = httpx.AsyncClient(base_url=http.base_url, timeout=600, trust_env=False)
    async with plain:
        rates = {"max_sessions_per_hour": 100, "max_open_sessions": 100}
        name = f"laptops {HOSTILE}"
        holder = await create_key(plain, KEY, name=name, **budgets, **rates)
        calls_of: dict[str | None, int] = {"build 17": 1, HOSTILE: 3, None: 1}
        for session, calls in calls_of.items():
            headers = {"user-agent": f"coder/1.2 {HOSTILE}"}
            for _ in range(calls):
                await holder.named(session).ask("WATCHED", headers=headers, **LIMITS)
        yield Watched(holder, story_provider)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("dark", 390)])
@pytest.mark.req("cw/19.key")
async def test_the_page_of_a_key_shows_its_budgets_and_sessions(
    browser: Browser, watched: Watched, theme: Theme, width: int
) -> None:
    """Names of sessions and clients are text, whatever they contain; there are no barriers."""
    url = str(watched.holder.http.base_url)
    async with Reader.signed_in(browser, url, theme, width) as reader:
        await reader.open("/ui/keys")
        await reader.page.get_by_role("link", name=watched.holder.key["key_id"]).click()
        rows = reader.page.get_by_role("region", name="Sessions").locator("tbody tr")
        await expect(rows).to_have_count(3)
        texts = await rows.all_inner_texts()
        await expect(rows.nth(1).locator("td").nth(6)).to_have_text("1")
        await reader.picture(f"key-{theme}-{width}")
        wide = await reader.page.evaluate("document.documentElement.scrollWidth")

        assert [text.split("\t")[0] for text in texts] == ["unnamed, today", HOSTILE, "build 17"]
        assert "$0.02" in texts[1]
        assert "exhausted" in texts[1]
        assert all("coder/1.2" in text for text in texts)
        await expect(reader.page.get_by_text("$0.04 of $0.10")).to_be_visible()
        assert wide <= width
        assert await reader.barriers() == []
        assert await reader.page.evaluate("document.documentElement.dataset.owned") is None
        assert reader.complaints == []


@pytest.mark.req("cw/19.key")
async def test_the_page_of_a_key_is_live(reader: Reader, watched: Watched) -> None:
    """It shows the reservation of a call in flight, its cost, refused calls and new sessions."""
    holder, provider = watched.holder.named("new"), watched.provider
    await provider.script("KEPT OPEN", [Step(hang=True)])
    await reader.open(watched.path)
    rows = reader.page.get_by_role("region", name="Sessions").locator("tbody tr")
    await expect(rows).to_have_count(3)

    asking = asyncio.create_task(holder.ask("KEPT OPEN", **LIMITS))
    await expect(rows).to_have_count(4)
    await expect(rows.first).to_contain_text("open run")
    await expect(rows.first.locator("td").nth(4)).to_have_text("$0.01")
    await expect(reader.page.get_by_text("$0.01 reserved by calls in flight")).to_be_visible()
    await provider.release()
    assert (await asking).status_code == 200
    refused = await holder.ask("WATCHED", **{**LIMITS, "model": "none"})
    await expect(rows.first.locator("td").nth(4)).to_have_text("$0")
    await expect(rows.first.locator("td").nth(6)).to_have_text("1")

    assert refused.status_code == 404
    await rows.first.get_by_role("link", name="open run").click()
    await reader.see(".badge")


@pytest.mark.req("cw/19.key")
async def test_older_sessions_are_added_to_the_page(reader: Reader, watched: Watched) -> None:
    """A page of the list has 50 sessions."""
    for number in range(48):
        reply = await watched.holder.named(f"many {number}").ask("WATCHED", model="none")
        assert reply.status_code == 404
    await reader.open(watched.path)
    rows = reader.page.get_by_role("region", name="Sessions").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await reader.page.get_by_role("button", name="Older sessions").click()

    await expect(rows).to_have_count(51)
    await expect(rows.last).to_contain_text("build 17")

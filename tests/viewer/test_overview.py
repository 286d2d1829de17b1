"""The overview page: plots, their values by key and as tables, and the reasons of failures."""

import re

import httpx
import pytest
from playwright.async_api import expect

from tests.viewer.reader import Reader

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_plots_are_read_with_keys_and_as_tables(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Each plot has a cursor for the values of a period, and a table of all values."""
    await reader.open("/ui/overview")
    statistics = (await http.get("/statistics")).json()
    total = statistics["total"]

    cursor = reader.page.get_by_role("slider", name="Runs by status")
    text = re.compile(f"{total['completed']}\\b.*failed {total['failed']}\\b")
    await expect(cursor).to_have_attribute("aria-valuetext", text)
    await cursor.focus()
    tip = reader.page.locator(".plot-tip:visible")
    await expect(tip).to_contain_text("completed")
    await reader.page.keyboard.press("Home")
    await expect(cursor).to_have_attribute("aria-valuetext", re.compile(": none$"))
    await reader.page.keyboard.press("Escape")
    await expect(tip).to_have_count(0)
    await reader.page.get_by_label("Runs by status: values as a table").click()
    row = reader.page.get_by_role("region", name="Runs by status").locator("tbody tr").last
    await expect(row).to_contain_text(str(total["completed"]))
    duration = reader.page.get_by_role("slider", name="Duration")
    await expect(duration).to_have_attribute("aria-valuetext", re.compile(r"\(p50\) [0-9.]+ m?s"))
    cost = reader.page.get_by_role("region", name="Cost by agent")
    await expect(cost).to_contain_text("Nothing was spent in this time.")


async def test_the_reasons_of_failures_lead_to_their_runs(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """The reasons are ordered by the number of runs; the range of time is part of the address."""
    await reader.open("/ui/overview")
    await reader.page.get_by_role("link", name="7 days").click()
    await expect(reader.page).to_have_url(re.compile("range=7d"))
    failures = (await http.get("/statistics?period=day")).json()["failures"]

    rows = reader.page.get_by_role("region", name="Failures by reason").locator("tbody tr")
    await expect(rows).to_have_count(len(failures))
    await expect(rows.first).to_contain_text(str(failures[0]["runs"]))
    tool = rows.filter(has_text="ToolFailedError")
    await tool.get_by_role("link").click()
    await reader.page.get_by_role("link", name="broken").wait_for()
    await expect(reader.page.locator("tbody tr").filter(has_text="completed")).to_have_count(0)

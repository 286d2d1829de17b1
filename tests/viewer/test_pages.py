"""Every page of the viewer in a browser: no errors, and accessible to all users."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.support.processes import run_caseworker
from tests.viewer.reader import KEY, Reader, Theme

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGES = {
    "/ui": "broken",
    "/ui/runs": "broken",
    "/ui/overview": "Failures by reason",
    "/ui/runs/case": "42",
    "/runs/broken/trace": "division by zero",
    "/ui/runs/hanging": "Cancel",
    "/ui/runs/asking": "Approve pay?",
    "/ui/threads": "A talk",
    "/ui/threads/talk": "Second wording",
    "/ui/agents": "tutor",
    "/ui/agents/tutor": "Model",
    "/ui/graphs": "sums",
    "/ui/graphs/sums": "Steps",
    "/ui/tools": "calculator",
    "/ui/models": "Configured models",
    "/ui/keys": "API keys",
    "/ui/schedules": "0 6 * * *",
    "/ui/quotas": "Running now",
    "/ui/evaluations": "Make a report",
}
"""A text that each page must contain."""
PAGES_OF_MENU = [
    *("Runs", "Overview", "Chats", "Agents", "Graphs", "Tools", "Models", "Schedules", "Keys"),
    *("Quotas", "Evaluations"),
]


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1280),
        ("dark", 390),
        pytest.param("dark", 1280, marks=pytest.mark.proof),
        pytest.param("light", 390, marks=pytest.mark.proof),
    ],
)
async def test_every_page_shows_what_it_is_for_and_has_no_barriers(
    browser: Browser, http: httpx.AsyncClient, theme: Theme, width: int
) -> None:
    """There are no console errors and no policy violations, and no page is wider than the screen.

    A phone is 390 pixels wide.
    """
    async with Reader.signed_in(browser, str(http.base_url), theme, width) as reader:
        found = {}
        for path, text in PAGES.items():
            await reader.open(path)
            await reader.page.get_by_text(text).first.wait_for(state="attached")
            wide = await reader.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, path
            if barriers := await reader.barriers():
                found[path] = barriers

        assert found == {}
        assert reader.complaints == []


async def test_the_parts_of_a_run_have_no_barriers(reader: Reader) -> None:
    """Neither the detail of a call nor any tab has an accessibility violation."""
    await reader.open("/ui/runs/broken")
    await (await reader.see(".calls-body .call >> nth=2")).click()
    await reader.see(".detail .facts")
    assert await reader.barriers() == []

    found = {}
    for tab in ("steps", "spent", "result", "files"):
        await reader.page.click(f"#tab-{tab}")
        await reader.see(f"#panel-{tab}")
        if barriers := await reader.barriers():
            found[tab] = barriers
    assert found == {}


async def test_two_evaluations_are_compared(
    reader: Reader, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The reports come from `caseworker eval`, and each change is marked as better or worse."""
    reports = [_evaluated(str(http.base_url), tmp_path / gold, gold) for gold in ("41", "42")]
    await reader.open("/ui/evaluations")
    await reader.page.set_input_files("#reports", reports)

    await reader.page.get_by_text("41.json (before) and 42.json (now)").wait_for()
    figure = reader.page.get_by_role("row").filter(has_text="Success at first try")
    assert (await figure.inner_text()).split("\t") == [
        "Success at first try",
        "50.0 %",
        "100.0 %",
        "+50.0 % better",
    ]
    changed = reader.page.get_by_role("region", name="Cases").locator("tbody tr")
    assert await reader.page.get_by_text("Cases with another outcome: 1 of 2").count() == 1
    assert "second" in await changed.inner_text()
    assert await reader.barriers() == []
    await reader.page.get_by_role("button", name="Swap").click()
    await reader.page.get_by_text("50.0 % worse").wait_for()
    await changed.get_by_role("link").click()
    await reader.page.get_by_role("heading", name=":second").wait_for()


def _evaluated(url: str, folder: Path, gold: str) -> Path:
    """Evaluate two cases of the service; ``gold`` is the expected answer of the second one."""
    folder.mkdir()
    cases = [
        {"id": "first", "input": "What is 6 * 7?", "gold_answer": "42"},
        {"id": "second", "input": "What is 6 * 7? ", "gold_answer": gold},
    ]
    dataset = folder / "cases.json"
    dataset.write_text(json.dumps(cases))
    options = ("--url", url, "--no-gate", "--out", str(folder / "out"))
    ended = run_caseworker("eval", str(dataset), *options, env={"CASEWORKER_API_KEY": KEY})
    assert ended.returncode == 0, ended.stderr
    return (folder / "out" / "metrics.json").rename(folder / f"{gold}.json")


async def test_the_quota_of_the_keys_own_tenant_is_shown_unasked(reader: Reader) -> None:
    """Another tenant's quota can be requested in a collapsed form."""
    await reader.open("/ui/quotas")

    await reader.page.get_by_role("heading", name="default").wait_for()
    assert not await reader.page.get_by_label("Tenant").is_visible()
    await reader.page.get_by_text("Another tenant").click()
    await reader.page.get_by_label("Tenant").fill("other")
    await reader.page.get_by_role("button", name="Show").click()
    await reader.page.get_by_role("heading", name="other").wait_for()


@pytest.mark.proof
async def test_the_description_of_the_api_is_shown(reader: Reader) -> None:
    """All routes are shown under the policy, without requests to another host."""
    asked: list[str] = []
    reader.page.on("request", lambda request: asked.append(request.url))
    await reader.page.goto(f"{reader.url}/docs")

    route = await reader.see("#operations-runs-create_run, .opblock-post")
    await route.click()
    await reader.see(".opblock-body")
    assert await reader.page.locator(".opblock").count() > 40
    assert all(address.startswith((reader.url, "data:")) for address in asked), asked


async def test_the_pages_are_in_a_menu_on_a_phone(
    browser: Browser, http: httpx.AsyncClient
) -> None:
    """The menu opens and closes by key, and closes when a page is chosen."""
    async with Reader.signed_in(browser, str(http.base_url), width=390) as reader:
        await reader.open("/ui")
        links = reader.page.get_by_role("navigation", name="Pages").get_by_role("link")
        menu = reader.page.get_by_role("button", name="Menu: Runs")
        await expect(links).to_have_count(0)
        await menu.press("Enter")
        assert await links.all_inner_texts() == PAGES_OF_MENU
        await reader.page.keyboard.press("Escape")
        await expect(links).to_have_count(0)
        await expect(menu).to_be_focused()
        await menu.press("Enter")
        await links.filter(has_text="Quotas").press("Enter")
        await reader.page.get_by_role("heading", name="Quotas").wait_for()
        await reader.page.get_by_role("button", name="Menu: Quotas").wait_for()
        await expect(links).to_have_count(0)


async def test_the_theme_is_the_systems_until_another_is_chosen(reader: Reader) -> None:
    """The choice is kept after a reload."""
    await reader.open("/ui/evaluations")
    button = reader.page.get_by_role("button", name="System theme")
    await button.click()
    await reader.page.get_by_role("button", name="Light theme").click()

    await reader.page.reload()

    await reader.page.get_by_role("button", name="Dark theme").wait_for()
    assert await reader.page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_who_has_no_key_is_asked_for_one(browser: Browser, http: httpx.AsyncClient) -> None:
    """A wrong key is refused with a reason; the right one leads to the requested page.

    A page that needs no key does not offer to sign in.
    """
    async with Reader.opened(browser, str(http.base_url)) as reader:
        await reader.open("/ui/evaluations")
        assert await reader.page.get_by_role("button", name="Sign").count() == 0
        await reader.page.goto(f"{reader.url}/ui/runs/case")
        field = await reader.see("form.sign-in input")
        assert "case" not in await reader.text()
        await field.fill("cwk_wrong")
        await field.press("Enter")
        await reader.see("form.sign-in .problem:not(:empty)")
        field = await reader.see("form.sign-in input")
        await field.fill(KEY)
        await field.press("Enter")

        await reader.page.get_by_role("heading", name="case").wait_for()
        await reader.page.get_by_role("button", name="Sign out").click()
        await reader.see("form.sign-in input")

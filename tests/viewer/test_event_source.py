"""The EventSource of a browser follows a run to its end, and then stops."""

import pytest
from playwright.async_api import Browser

from tests.support.service import ServiceProcess, finished

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.proof]

FOLLOW = """(path) => new Promise((resolve) => {
    const source = new EventSource(path), seen = { opened: 0, ends: 0 };
    source.onopen = () => { seen.opened += 1; };
    source.addEventListener("run.completed", () => { seen.ends += 1; });
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) resolve(seen); };
})"""


@pytest.mark.parametrize("is_live", [True, False])
async def test_an_event_source_is_closed_after_the_last_event(
    browser: Browser, database_url: str, is_live: bool
) -> None:
    """It reconnects once after the end of the stream, and gets 204."""
    wait = {"id": "s", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "1"}}}
    run = {"kind": "graph", "run_id": "a", "graph": {"steps": [wait], "edges": []}}
    async with ServiceProcess(database_url) as service, service.client() as client:
        await client.post_run(run)
        if not is_live:
            await finished(client, "a")
        page = await browser.new_page()
        await page.goto(f"{service.url}/docs")
        seen = await page.evaluate(FOLLOW, "/runs/a/events")
        await page.close()

    assert seen == {"opened": 1, "ends": 1}

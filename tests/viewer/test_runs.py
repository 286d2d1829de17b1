"""The views and actions of a run in a browser."""

import re

import httpx
import pytest
from playwright.async_api import expect

from tests.viewer.reader import Reader
from tests.viewer.story import HOSTILE, MANY, ask, asking, graph_run

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT_MS = 300_000
CROSSED = """() => {
    const frames = [...document.querySelectorAll(".step-box")].map((box) => {
        const { e: x, f: y } = box.transform.baseVal.consolidate().matrix;
        const { width, height } = box.querySelector("rect").getBBox();
        return { name: box.querySelector("text").textContent, x, y, width, height };
    });
    const crossed = [];
    for (const edge of document.querySelectorAll(".edge")) {
        for (let at = 0; at < edge.getTotalLength(); at += 2) {
            const { x, y } = edge.getPointAtLength(at);
            const inside = (one) => x > one.x + 4 && x < one.x + one.width - 4
                && y > one.y + 1 && y < one.y + one.height - 1;
            crossed.push(...frames.filter(inside).map(({ name }) => name));
        }
    }
    return crossed;
}"""
"""A script that returns the steps which an edge of the drawing passes behind."""


async def test_what_comes_from_data_is_text_wherever_it_is_shown(reader: Reader) -> None:
    """Prompts, replies, metadata and results never become elements of the page."""
    await reader.open("/ui?q=hostile")
    await reader.page.locator("tbody").get_by_text("<img src=x onerror=").first.wait_for()
    await reader.open("/ui/runs/hostile")
    await (await reader.see(".calls-body .call >> nth=2")).click()
    await reader.page.locator(".detail .said").get_by_text(HOSTILE).wait_for()
    await reader.page.locator(".detail .json").get_by_text(HOSTILE).first.wait_for()
    await reader.page.click("#tab-result")
    await reader.page.locator("#panel-result").get_by_text("<img src=x onerror=").first.wait_for()

    assert await reader.page.evaluate("document.documentElement.dataset.owned") is None
    assert await reader.page.locator("main img").count() == 0


async def test_a_call_shows_its_attempts_its_prompt_and_its_reply(reader: Reader) -> None:
    """The first attempt failed and was retried."""
    await reader.open("/ui/runs/broken")
    assert "division by zero" in await reader.text(".banner-failed")

    await reader.page.get_by_role("row").filter(has_text="answer").first.click()

    detail = reader.page.locator(".detail")
    await expect(detail).to_contain_text("HTTP 503", timeout=WAIT_MS)
    await expect(detail).to_contain_text("Fetch the rates")
    await expect(detail).to_contain_text("EUR 1.08")


async def test_the_steps_of_a_graph_say_how_they_stand(reader: Reader) -> None:
    """A step that did not start is labelled so, and a click on a step selects its call."""
    await reader.open("/ui/runs/broken")
    await reader.page.click("#tab-steps")
    steps = reader.page.locator(".step-box")

    await expect(steps).to_have_count(4)
    assert await steps.filter(has_text="report").get_attribute("aria-label") == (
        "report, llm, not started"
    )
    await steps.filter(has_text="rates").click()
    await expect(reader.page.locator(".calls-body .selected")).to_contain_text("rates")


@pytest.mark.req("cw/13.map")
async def test_a_map_says_what_became_of_its_items(reader: Reader) -> None:
    """The graph shows their numbers, and the detail of the step shows their errors."""
    numbers = "1 of 3 items completed, 1 failed, 1 not started"
    await reader.open("/ui/runs/items")
    await reader.page.click("#tab-steps")
    box = reader.page.locator(".step-box").filter(has_text="each")
    await expect(box).to_have_attribute("aria-label", re.compile(f"^each, map, failed · {numbers}"))
    await box.click()

    detail = reader.page.locator(".detail")
    await expect(detail).to_contain_text(numbers, timeout=WAIT_MS)
    failed = detail.get_by_role("table", name="Failed items").locator("tbody tr")
    await expect(failed).to_have_count(1)
    await expect(failed).to_contain_text("division by zero")
    await reader.picture("items")


@pytest.mark.parametrize(
    ("run_id", "dimension", "said"),
    [("broken", "tool_calls", "2 tool calls,"), ("refused", "llm_calls", "1 model call")],
)
async def test_calls_that_failed_are_counted_in_the_facts_of_a_run(
    reader: Reader, http: httpx.AsyncClient, run_id: str, dimension: str, said: str
) -> None:
    """The number is the one that counts towards the limits."""
    await reader.open(f"/ui/runs/{run_id}")

    calls = reader.page.locator(".glance .facts > div").filter(has_text="tool call").locator("dd")
    shown = "\n".join(await calls.all_inner_texts())
    assert any(line.startswith(said) for line in shown.splitlines()), shown
    usage = (await http.get(f"/runs/{run_id}")).json()["usage"]
    assert said.startswith(f"{usage[dimension]} ")


async def test_the_banner_of_a_failed_run_leads_to_the_step_that_failed(reader: Reader) -> None:
    """It does not lead to calls that were cut off because of the failure."""
    await reader.open("/ui/runs/broken")
    await reader.page.get_by_role("button", name="Show the call: convert").click()

    selected = reader.page.locator(".calls-body .selected")
    await expect(selected).to_contain_text("convert", timeout=WAIT_MS)
    await expect(selected.get_by_role("img", name="failed")).to_be_visible()


async def test_the_graph_inside_a_step_is_drawn_when_it_is_opened(reader: Reader) -> None:
    """It shows the status of its steps, each of which leads to its call."""
    await reader.open("/ui/runs/nested")
    await reader.page.click("#tab-steps")
    inner = reader.page.locator("#panel-steps details")
    await expect(inner.locator(".step-box")).to_have_count(0)
    await inner.get_by_text("Inside inside: 2 steps").click()

    box = inner.locator(".step-box").filter(has_text="double")
    await expect(box).to_have_attribute("aria-label", re.compile("^double, tool, completed"))
    await box.click()
    selected = reader.page.locator(".calls-body .selected")
    await expect(selected).to_contain_text("inside/double", timeout=WAIT_MS)


async def test_an_edge_passes_behind_no_step(reader: Reader) -> None:
    """An edge that skips a layer is routed around the steps of that layer."""
    await reader.open("/ui/runs/nested")
    await reader.page.click("#tab-steps")
    await reader.see(".step-box")

    assert await reader.page.evaluate(CROSSED) == []


async def test_pictures_that_a_run_made_are_shown(reader: Reader) -> None:
    """The viewer fetches them with its key, because a picture's URL cannot contain it."""
    await reader.open("/ui/runs/drawing")
    await reader.page.click("#tab-files")
    picture = reader.page.locator("#panel-files img")

    await expect(picture).to_have_js_property("complete", True, timeout=WAIT_MS)
    await expect(picture).to_have_attribute("src", re.compile("^blob:"), timeout=WAIT_MS)
    width = "img => img.decode().then(() => img.naturalWidth)"
    assert await picture.evaluate(width) > 300


async def test_the_tree_of_calls_is_walked_with_keys(reader: Reader) -> None:
    """The keys follow the treegrid pattern: arrows move and fold, Enter opens the detail."""
    await reader.open("/ui/runs/broken")
    await reader.page.locator("[role=treegrid]").focus()
    keyboard, selected = reader.page.keyboard, reader.page.locator(".calls-body .selected")

    await keyboard.press("Home")
    await expect(selected).to_have_attribute("aria-level", "1")
    await keyboard.press("ArrowDown")
    await expect(selected).to_contain_text("rates")
    await expect(selected).to_have_attribute("aria-expanded", "true")
    await keyboard.press("ArrowLeft")
    await expect(selected).to_have_attribute("aria-expanded", "false")
    await keyboard.press("ArrowRight")
    await keyboard.press("ArrowRight")
    await expect(selected).to_have_attribute("aria-level", "3")
    await keyboard.press("Enter")
    await expect(reader.page.locator(".detail")).to_be_focused(timeout=WAIT_MS)
    await keyboard.press("Escape")
    await expect(reader.page.locator("[role=treegrid]")).to_be_focused()


async def test_ten_thousand_calls_are_few_elements(reader: Reader) -> None:
    """Only visible rows exist as elements, wherever the user scrolls or searches."""
    await reader.open("/ui/runs/many")
    grid = reader.page.locator("[role=treegrid]")
    rows = reader.page.locator(".calls-body .call")

    count = int(await grid.get_attribute("aria-rowcount") or 0)
    assert count >= MANY
    assert 10 < await rows.count() < 100
    await grid.focus()
    await reader.page.keyboard.press("End")
    await expect(reader.page.locator(".calls-body .selected")).to_have_attribute(
        "aria-rowindex", str(count)
    )
    assert 10 < await rows.count() < 100
    assert await reader.page.evaluate("document.querySelectorAll('*').length") < 2_500


async def test_a_run_is_cancelled_with_a_receipt_and_its_page_follows(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """The page updates through events, without a reload."""
    await http.post("/runs", json=graph_run("to-cancel", [ask("slow", "hang on")]))
    await reader.open("/ui/runs/to-cancel")
    await reader.page.get_by_role("button", name="Cancel…").click()
    await reader.page.get_by_label("Reason").fill("Nobody wants it")
    await reader.page.get_by_role("button", name="Cancel the run").click()

    receipt = await reader.see(".receipt")
    assert "Nobody wants it" in await receipt.inner_text()
    await reader.page.get_by_role("button", name="Close").click()
    heading = reader.page.locator(".page-head")
    await expect(heading).to_contain_text("cancelled", timeout=WAIT_MS)
    assert (await http.get("/runs/to-cancel")).json()["cancel"]["reason"] == "Nobody wants it"


async def test_an_approval_is_given_with_other_arguments(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Invalid arguments are refused with a reason; valid ones let the run continue."""
    await http.post("/runs", json=asking("to-approve"))
    await reader.open("/ui/runs/to-approve")
    signs = reader.page.locator(".calls-body .call .cell-name > .sign")
    await expect(signs).to_have_count(3, timeout=WAIT_MS)  # the run, its step and the question
    await expect(reader.page.locator(".calls-body .cell-name > .sign-waiting")).to_have_count(3)
    arguments = reader.page.get_by_label("Arguments (may be changed)")
    await arguments.fill('{"amount": "much"}')
    await reader.page.get_by_role("button", name="Approve").click()
    await reader.see(".approval .problem:not(:empty)")
    await arguments.fill('{"amount": 4500}')
    await reader.page.get_by_role("button", name="Approve").click()

    heading = reader.page.locator(".page-head")
    await expect(heading).to_contain_text("completed", timeout=WAIT_MS)
    run = (await http.get("/runs/to-approve")).json()
    assert run["result"]["outputs"]["pay"] == {"approved": {"amount": 4500}}


async def test_a_run_goes_on_from_another_one(reader: Reader, http: httpx.AsyncClient) -> None:
    """The page of the new run opens and names its source."""
    await reader.open("/ui/runs/case")
    await reader.page.get_by_role("button", name="Resume this run").click()
    await reader.page.get_by_role("spinbutton", name="Tool calls").fill("3")
    await reader.page.get_by_role("button", name="Start the run").click()

    heading = reader.page.locator(".page-head")
    await expect(heading).to_contain_text("resumed from case", timeout=WAIT_MS)
    newest = (await http.get("/runs", params={"limit": 1})).json()["runs"][0]
    assert newest["from"] == {"run_id": "case", "until": None}
    assert newest["limits"]["max_tool_calls"] == 3


async def test_the_list_of_runs_filters_and_hears_of_new_runs(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Filters work by status, metadata and part of an ID; newly posted runs appear."""
    await reader.open("/ui")
    await reader.page.get_by_label("Status").select_option("failed")
    rows = reader.page.locator("tbody tr")
    await expect(rows.filter(has_text="completed")).to_have_count(0)
    await expect(rows.filter(has_text="broken")).to_have_count(1)
    await reader.open("/ui?q=team=sales")
    await expect(rows).to_have_count(2)
    await reader.open("/ui?q=team=sales+region=the+north")
    await expect(rows).to_have_count(1)
    await expect(rows.filter(has_text="nested")).to_have_count(1)
    await reader.open("/ui?q=broken")
    await expect(rows).to_have_count(1)
    await reader.open("/ui?q=rawi")
    await expect(rows).to_have_count(1)
    await expect(rows.filter(has_text="drawing")).to_have_count(1)
    await reader.open("/ui")
    await http.post("/runs", json={"run_id": "just-now", "input": "What is 6 * 7?"})

    await expect(rows.filter(has_text="just-now")).to_have_count(1, timeout=WAIT_MS)


async def test_columns_are_chosen_by_key_and_kept(reader: Reader) -> None:
    """The choice is part of the address and is used again on the next visit."""
    await reader.open("/ui?q=team=sales")
    keyboard = reader.page.keyboard
    chooser = reader.page.get_by_text("Columns", exact=True).first
    await chooser.focus()
    await keyboard.press("Enter")
    region = reader.page.get_by_label("region", exact=True)
    for _ in range(12):  # the fields are reached in order, with the metadata keys last
        await keyboard.press("Tab")
        if await region.evaluate("(one) => one === document.activeElement"):
            break
    await keyboard.press("Space")
    await expect(reader.page.get_by_role("columnheader", name="region")).to_be_visible()
    await expect(region).to_be_focused()
    nested = reader.page.locator("tbody tr").filter(has_text="nested")
    await expect(nested.get_by_role("cell", name="the north", exact=True)).to_be_visible()
    await expect(reader.page).to_have_url(re.compile(r"q=team.*column=metadata\.region"))
    await keyboard.press("Escape")
    await expect(chooser).to_be_focused()
    await expect(region).to_be_hidden()

    await reader.open("/ui")
    await expect(reader.page.get_by_role("columnheader", name="region")).to_be_visible()
    await reader.open("/ui?column=kind")
    headers = reader.page.get_by_role("columnheader")
    await expect(headers).to_have_text(["Run", "Status", "Kind"])


async def test_relative_times_follow_the_clock(reader: Reader) -> None:
    """The title of a time shows the moment itself."""
    await reader.page.clock.install()
    await reader.open("/ui?q=case")
    created = reader.page.locator("tbody time").first
    before = int((await created.inner_text()).split()[0])
    await reader.page.clock.run_for("02:05:00")

    await expect(created).to_have_text("2 h ago")
    assert before < 60
    assert re.search(r"\d\d:\d\d:\d\d", await created.get_attribute("title") or "")


async def test_the_branches_of_a_chat_are_one_click_apart(reader: Reader) -> None:
    """The earlier wording and its answer replace the later ones."""
    await reader.open("/ui/threads/talk")
    talk = reader.page.locator(".conversation")
    await expect(talk).to_contain_text("Second wording")
    await reader.page.get_by_role("button", name="Earlier wording").click()

    await expect(talk).to_contain_text("First wording", timeout=WAIT_MS)
    await expect(talk).not_to_contain_text("Second wording")

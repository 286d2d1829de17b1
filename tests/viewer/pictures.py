"""Makes the pictures in docs/pictures: ``make pictures``, or ``python -m tests.viewer.pictures``.

``--pages`` makes pictures of all pages instead, in both themes and also as wide as a phone.
All pictures show real runs of a service; its model is the tests' scripted provider.
"""

import argparse
import asyncio
import io
import json
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import httpx
import psycopg
from PIL import Image
from playwright.async_api import Browser, Page

from caseworker.main.demo import with_recorded_model
from caseworker.settings.schema import Settings
from tests.support.browser import opened_browser
from tests.support.database import open_server
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess, model_settings
from tests.support.threads import flow
from tests.viewer.reader import KEY, Reader, Theme
from tests.viewer.story import Json, ask, calculate, graph_run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
MAX_BYTES = 120_000
AGAIN = {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 250}
QUESTION = "What is 17% of 2,340?"
BULKY = 100
"""Items of the fan-out."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture: its page, its theme, and the actions before it."""

    path: str
    theme: Theme
    prepare: Callable[[Page], Awaitable[None]]
    height: int = 820
    width: int = 1280


async def _nothing(page: Page) -> None:
    return


def _select(text: str) -> Callable[[Page], Awaitable[None]]:
    """Return a function that opens the detail of the first call that contains a text."""

    async def select(page: Page) -> None:
        await page.locator(".calls-body .call").filter(has_text=text).first.click()
        await page.locator(".detail .facts").wait_for()
        await page.evaluate("document.activeElement.blur()")

    return select


async def _steps(page: Page) -> None:
    await page.click("#tab-steps")
    await page.evaluate("document.activeElement.blur()")


SCENES = {
    "case": Scene("/ui/runs/discount", "light", _select("plan")),
    "failed-graph": Scene("/ui/runs/daily-report", "light", _select("2 retries")),
    "steps": Scene("/ui/runs/daily-report", "light", _steps),
    "cancelled": Scene("/ui/runs/translate-manual", "dark", _nothing),
    "fan-out": Scene("/ui/runs/classify-100", "dark", _nothing, 1000),
    "halted-agent": Scene("/ui/runs/cheap-order", "light", _nothing, 800),
    "sub-agent": Scene("/ui/runs/stock-question", "dark", _select("clerk")),
    "chat": Scene("/ui/threads/trip", "light", _nothing, 540),
    "overview": Scene("/ui/overview?range=7d", "light", _nothing, 880),
}
PAGES = (
    *("/ui", "/ui/overview", "/ui/runs/discount", "/ui/runs/daily-report", "/ui/threads"),
    *("/ui/threads/trip", "/ui/agents", "/ui/agents/clerk", "/ui/graphs", "/ui/schedules"),
    *("/ui/quotas", "/ui/evaluations"),
)
EVERY_PAGE = {
    f"{path.strip('/').replace('/', '-')}-{theme}-{width}": Scene(path, theme, _nothing, 0, width)
    for path in PAGES
    for theme in get_args(Theme)
    for width in (1280, 390)
}
COPIES = """
WITH copied AS (
    INSERT INTO runs (tenant_id, run_id, kind, status, request_hash, request, metadata, result,
        usage, stop, finish_reason, active_seconds, created_at, started_at, finished_at)
    SELECT tenant_id, run_id || '-' || n, kind, status, request_hash, request, metadata, result,
        usage, stop, finish_reason, active_seconds, created_at - ago, started_at - ago,
        finished_at - ago + (n * 37 %% 53) * interval '0.1 s'
    FROM runs, generate_series(1, 60) n, make_interval(hours => n * n * 29 %% 160 + 1) ago
    WHERE (n * 7 + length(run_id)) %% (CASE status WHEN 'completed' THEN 3 ELSE 11 END) = 0
    RETURNING tenant_id, run_id
)
INSERT INTO calls (tenant_id, run_id, seq, status, request_hash, call_key, charge, node, brief)
SELECT tenant_id, copied.run_id, seq, status, request_hash, call_key, charge, node, brief
FROM copied JOIN calls USING (tenant_id)
WHERE calls.run_id = regexp_replace(copied.run_id, '-[0-9]+$', '')
"""
"""Spreads copies of the runs over a week, for the overview."""


async def tell(http: httpx.AsyncClient, provider: FakeProvider) -> None:
    """Make every run that a picture shows."""
    for marker, steps in _script().items():
        await provider.script(marker, steps, repeat_last=True)
    case = {"run_id": "discount", "input": QUESTION, "expected_tools": ["calculator"]}
    await _run(http, {**case, "budget": {"max_tool_calls": 3}, "metadata": {"team": "sales"}})
    await _run(http, _report())
    await _run(http, _translation(), wait=0)
    await provider.wait_for_arrivals(6, "Translate chapter")
    await asyncio.sleep(0.8)  # it works for a while
    path = "/runs/translate-manual?reason=The+customer+withdrew+the+order"
    (await http.delete(path)).raise_for_status()
    await _run(http, _classification())
    await _run(http, _agents())
    bodies = re.findall(r"-d '(\{.*?\})'\n", (ROOT / "README.md").read_text(), re.DOTALL)
    clerk, _, cheap_order = map(json.loads, bodies[:3])
    await _sent(http.post("/agents", json=clerk))
    await _run(http, cheap_order)
    await _talk(http)


def _script() -> dict[str, list[Step]]:
    plan = {"actions": [{"tool": "calculator", "args": {"expression": "0.17 * 2340"}}]}
    lookup = {"expression": "12 * 144 - 96"}
    return {
        QUESTION: [Step(plan=plan, delay_seconds=0.6, tokens_in=588, tokens_out=31)],
        "exchange rates": [
            Step(status=503, delay_seconds=0.2),
            Step(status=429, headers={"retry-after": "1"}, delay_seconds=0.1),
            _said("EUR 1.0842, GBP 1.2710, CHF 1.1325", 0.9),
        ],
        "open orders": [_said("17 orders, 3 of them late", 3)],
        "Translate chapter 1": [_said("Kapitel 1: Aufbau", 0.8)],
        "Translate chapter 2": [_said("Kapitel 2: Betrieb", 1.1)],
        **{f"Translate chapter {n}": [Step(hang=True)] for n in range(3, 7)},
        **{
            f"message {item}:": [
                Step(
                    text=("complaint", "order", "question")[item % 3],
                    delay_seconds=0.25 + (item * 37 % 53) / 60,
                    tokens_in=90 + item,
                    tokens_out=4,
                )
            ]
            for item in range(1, BULKY + 1)
        },
        "You sell": [
            _calls("call_1", "clerk", {"input": "How many bolts are in stock?"}, 0.7),
            Step(text="Yes: 1,632 bolts are in stock, more than 1,500.", delay_seconds=0.5),
        ],
        "You keep the stock": [
            _calls("call_2", "calculator", lookup, 0.5),
            Step(text="There are 1,632 bolts.", delay_seconds=0.4),
        ],
        "two days in Lisbon": [Step(text="Day 1: Alfama and the castle. Day 2: Belém by tram 15.")],
        "three days in Porto": [
            Step(text="Ribeira, the wine cellars of Gaia, and a day in the Douro valley."),
            Step(text="Day 1: Ribeira. Day 2: Serralves. Day 3: by train to Pinhão and back."),
        ],
        "where do I eat": [Step(text="In the Mercado do Bolhão at noon, in Matosinhos at night.")],
    }


def _said(text: str, delay: float) -> Step:
    return Step(text=text, delay_seconds=delay, tokens_in=412, tokens_out=38)


def _calls(call_id: str, name: str, arguments: Json, delay: float) -> Step:
    call = {"id": call_id, "name": name, "arguments": json.dumps(arguments)}
    return Step(tool_calls=[call], delay_seconds=delay, tokens_in=260, tokens_out=24)


def _report() -> Json:
    return graph_run(
        "daily-report",
        [
            ask("fetch-rates", "Which are the exchange rates of today?"),
            ask("fetch-orders", "List the open orders"),
            calculate("count", "17 - 3"),
            calculate("average", "4820 / (17 - 17)", policy=AGAIN),
            ask("summary", "Sum up"),
            ask("send", "Write the mail"),
        ],
        flow("fetch-orders", "count"),
        flow("fetch-orders", "average"),
        flow("fetch-rates", "summary"),
        flow("count", "summary", target_handle="count"),
        flow("average", "summary", target_handle="average"),
        flow("summary", "send"),
        metadata={"team": "finance"},
        budget={"max_steps": 8, "max_api_calls": 12, "max_cost_usd": 0.05, "max_seconds": 60},
    )


def _translation() -> Json:
    chapters = [ask(f"chapter-{n}", f"Translate chapter {n}") for n in range(1, 7)]
    joined = [flow(each["id"], "bind", target_handle=each["id"]) for each in chapters]
    limits = {"max_cost_usd": 0.5, "max_seconds": 600}
    steps = [*chapters, ask("bind", "Bind them")]
    return graph_run("translate-manual", steps, *joined, budget=limits)


def _classification() -> Json:
    prompt = "message ${default}: is it a complaint, an order or a question?"
    step = {"type": "llm", "data": {"prompt": prompt}}
    data = {"over": "default", "step": step, "max_items": BULKY, "max_parallel": 16}
    steps = [{"id": "classify", "type": "map", "data": data}, calculate("hours", "100 * 0.4")]
    limits = {"max_api_calls": 130, "max_cost_usd": 0.1, "max_seconds": 120}
    run = graph_run("classify-100", steps, flow("classify", "hours"), budget=limits)
    run["graph"]["max_parallel"] = 16
    return {**run, "input": list(range(1, BULKY + 1))}


def _agents() -> Json:
    clerk = {
        "name": "clerk",
        "description": "Knows what is in stock.",
        "prompt": {"system": "You keep the stock. Work everything out with the calculator."},
        "tools": ["calculator"],
        "limits": {"max_turns": 4},
    }
    seller = {
        "name": "seller",
        "prompt": {"system": "You sell. Ask clerk what is in stock."},
        "tools": [{"agent": clerk}],
        "limits": {"max_turns": 6},
    }
    said = {"input": "Can we deliver 1,500 bolts today?"}
    return {"run_id": "stock-question", "kind": "agent", "agent": seller, **said}


async def _talk(http: httpx.AsyncClient) -> None:
    agent = {"name": "guide", "prompt": {"system": "Plan short trips."}}
    thread = {"thread_id": "trip", "title": "A weekend in Portugal", "agent": agent}
    await _sent(http.post("/threads", json=thread))
    path, wait = "/threads/trip/messages", {"Prefer": "wait=60"}
    first = {"content": "Plan two days in Lisbon."}
    said = await _sent(http.post(path, json=first, headers=wait))
    edit = f"{path}/{said['user']['message_id']}/edit"
    other = {"content": "Plan three days in Porto, by train."}
    said = await _sent(http.post(edit, json=other, headers=wait))
    retry = f"{path}/{said['assistant']['message_id']}/retry"
    await _sent(http.post(retry, json={}, headers=wait))
    await _sent(http.post(path, json={"content": "And where do I eat?"}, headers=wait))


async def _run(http: httpx.AsyncClient, body: Json, wait: int = 60) -> None:
    await _sent(http.post("/runs", json=body, headers={"Prefer": f"wait={wait}"} if wait else {}))


async def _sent(sending: Any) -> Json:
    response = await sending
    if response.status_code >= httpx.codes.BAD_REQUEST:
        raise RuntimeError(response.text)
    answer: Json = response.json()
    return answer


def _evaluated(url: str, folder: Path) -> list[Path]:
    """Evaluate 40 cases with one tool call allowed, then with the defaults; return the metrics."""
    cases = ROOT / "tests" / "data" / "cases" / "cases.json"
    offline = {"MODELS_SMALL_PROVIDER": "offline", "MODELS_BIG_PROVIDER": "offline"}
    options = ("--no-gate", "--sample", "40", "--sample-seed", "3", "--concurrency", "2")
    found = []
    for name, more in (("before", {"BUDGET_MAX_TOOL_CALLS": "1"}), ("now", {})):
        env = {**offline, **more, "DATABASE_URL": url}
        run_caseworker("eval", str(cases), "--out", str(folder / name), *options, env=env)
        found.append((folder / name / "metrics.json").rename(folder / f"{name}.json"))
    return found


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[tuple[str, list[Path]]]:
    """Yield the address of a service with all runs, and two reports."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(open_server(folder / "data", synced=False))
        url = stack.enter_context(server.database())
        provider = await stack.enter_async_context(FakeProvider())
        [recorded] = with_recorded_model(Settings()).models.small.fallbacks
        models = {
            "MODELS_SMALL_MODEL": "gpt-5-nano",
            "MODELS_SMALL_FALLBACKS": f"[{recorded.model_dump_json()}]",
            "MODELS_BIG_MODEL": "gpt-5",
        }
        settings = model_settings(provider.openai_url) | models | {"AUTH_BOOTSTRAP_KEY": KEY}
        reports = _evaluated(url, folder)
        service = await stack.enter_async_context(ServiceProcess(url, settings=settings))
        headers = {"Authorization": f"Bearer {KEY}"}
        client = httpx.AsyncClient(base_url=service.url, headers=headers, timeout=600)
        await tell(await stack.enter_async_context(client), provider)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(COPIES, ())
        yield service.url, reports


async def _taken(browser: Browser, url: str, scene: Scene, theme: Theme) -> bytes:
    async with Reader.signed_in(browser, url, theme) as reader:
        size: Any = {"width": scene.width, "height": scene.height or 900}
        await reader.page.set_viewport_size(size)
        await reader.open(scene.path)
        await scene.prepare(reader.page)
        await reader.page.wait_for_timeout(400)
        if reader.complaints:
            raise RuntimeError("; ".join(reader.complaints))
        return await reader.page.screenshot(full_page=not scene.height)


def _save(picture: bytes, file: Path) -> None:
    """Save a picture as lossless WebP."""
    Image.open(io.BytesIO(picture)).save(file, "WEBP", lossless=True, quality=100, method=6)
    if file.parent == FOLDER and file.stat().st_size > MAX_BYTES:
        raise RuntimeError(f"{file.name} has {file.stat().st_size} bytes")


async def make(folder: Path, theme: Theme | None, *, pages: bool = False) -> None:
    """Make all pictures in a folder, in the theme of each or in the given one.

    With ``pages``, make pictures of all pages instead.
    """
    with tempfile.TemporaryDirectory(prefix="caseworker-pictures-") as temporary:
        async with _served(Path(temporary)) as (url, reports), opened_browser() as browser:

            async def compare(page: Page) -> None:
                await page.set_input_files("#reports", reports)
                await page.get_by_text("before.json (before) and now.json (now)").wait_for()
                await page.evaluate("document.activeElement.blur()")

            scenes = {**SCENES, "evaluation": Scene("/ui/evaluations", "light", compare, 1000)}
            for name, scene in (EVERY_PAGE if pages else scenes).items():
                picture = await _taken(browser, url, scene, theme or scene.theme)
                _save(picture, folder / f"{name}.webp")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Makes the pictures in docs/pictures.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--theme", choices=get_args(Theme), help="One for all of them.")
    parser.add_argument("--pages", action="store_true", help="All pages instead.")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(make(given.folder, cast("Theme | None", given.theme), pages=given.pages))


if __name__ == "__main__":
    _main()

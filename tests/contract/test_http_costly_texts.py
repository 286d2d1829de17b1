"""Texts that a caller chooses are redacted in bounded time."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.trace.payloads import Payloads
from caseworker.settings.models import ModelsSettings, SmallModelSettings
from tests.support.fake_provider.client import FakeProvider
from tests.support.tenants import Tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEMS = 5


@pytest.fixture(scope="module")
def sections(running_provider: FakeProvider) -> Mapping[str, Any]:
    """Use a fake model."""
    small = SmallModelSettings(
        provider="openai", base_url=running_provider.openai_url, model="fake-small"
    )
    return {"models": ModelsSettings(small=small)}


@pytest.mark.parametrize(
    "fragment", ["004 4 ", "(555) 00", "AB12 AB12 ", "4111 4111 ", "00 44 (0) 1 ", "DE89 37 "]
)
async def test_a_prompt_of_near_misses_is_redacted_in_bounded_time(
    tenants: Tenants, fragment: str
) -> None:
    """Every prompt of a map contains partial telephone, account and card numbers."""
    text = (fragment * 20_000)[:19_000]
    step = {"type": "llm", "data": {"prompt": text + "${default}"}}
    graph = {"steps": [{"id": "m", "type": "map", "data": {"step": step}}], "edges": []}
    body = {"kind": "graph", "graph": graph, "inputs": {"default": list(range(ITEMS))}}
    started = time.process_time()

    run = (await tenants.ask("a", "POST", "/runs", body, prefer="wait=30")).json()

    assert run["status"] == "completed", run
    assert (time.process_time() - started) / ITEMS < 0.3


@pytest.mark.parametrize("chars", [100, 8_000])
@pytest.mark.parametrize(
    ("shows", "step"),
    [
        ("prompt", {"type": "llm", "data": {"prompt": "${default}"}}),
        ("display", {"type": "tool", "data": {"tool": "respond"}}),
    ],
)
async def test_long_texts_of_calls_are_redacted_outside_the_event_loop(
    tenants: Tenants, chars: int, shows: str, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts and arguments of more than 2,000 characters hold up no other request."""
    on_loop: list[bool] = []
    redact = getattr(Payloads, shows)

    def noted(self: Payloads, *given: Any, **options: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return redact(self, *given, **options)

    monkeypatch.setattr(Payloads, shows, noted)
    if shows == "display":
        step = {**step, "data": {**step["data"], "args": {"answer": "1" * chars}}}
    graph = {"steps": [{"id": "s", **step}], "edges": []}
    body = {"kind": "graph", "graph": graph, "inputs": {"default": "x" * chars}}

    await tenants.ask("a", "POST", "/runs", body, prefer="wait=30")

    assert on_loop[0] == (chars < 2_000)

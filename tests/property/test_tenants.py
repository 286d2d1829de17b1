"""No sequence of requests of one tenant changes or shows anything of another.

The same requests are sent for a tenant beside another one, and for a third that is left alone: if
what the other does were to be seen anywhere, the answers would differ.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.database import TestServer
from tests.support.tenants import Tenants, open_tenants, said

GRAPH: dict[str, Any] = {
    "steps": [
        {"id": "s", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "1"}}}
    ],
    "edges": [],
}
Request = tuple[str, str, Any, dict[str, str]]

ids = st.sampled_from(["x", "y"])
keys = st.sampled_from([{}, {"idempotency_key": "k"}])
graphs = st.sampled_from([GRAPH, {**GRAPH, "max_parallel": 2}])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Return a request about one of a few things, which both tenants may call the same."""
    one, other, headers, graph = draw(ids), draw(ids), draw(keys), draw(graphs)
    by_name = {"kind": "graph", "graph": {"name": one}}
    inline = {"kind": "graph", "graph": graph, "run_id": one, "metadata": {"of": one}}
    choices: Sequence[Request] = (
        ("POST", "/runs", inline, headers),
        ("POST", "/runs", {**by_name, "run_id": other}, headers),
        ("POST", "/runs", {"from": {"run_id": one}, "run_id": other}, {}),
        ("DELETE", f"/runs/{one}", None, {}),
        ("GET", f"/runs/{one}", None, {}),
        ("GET", f"/runs/{one}/trace", None, {}),
        ("GET", "/runs", None, {}),
        ("GET", f"/runs?metadata.of={one}", None, {}),
        ("GET", "/runs?status=cancelled", None, {}),
        ("POST", "/graphs", {"name": one, "graph": graph}, {}),
        ("GET", "/graphs", None, {}),
        ("GET", f"/graphs/{one}/versions", None, {}),
        ("DELETE", f"/graphs/{one}", None, {}),
        ("POST", "/threads", {"thread_id": one, "graph": graph}, {}),
        ("GET", "/threads", None, {}),
        ("POST", f"/threads/{one}/messages", {"content": other, "run_id": other}, headers),
        ("GET", f"/threads/{one}/messages?tree=true", None, {}),
        ("POST", f"/threads/{one}/cancel", None, {}),
        ("DELETE", f"/threads/{one}", None, {}),
    )
    return draw(st.sampled_from(choices))


@pytest.fixture(scope="module")
def opened(postgres: TestServer) -> Iterator[tuple[asyncio.Runner, Tenants]]:
    """The service, whose runs stay queued: what it executes would take its own time."""
    with postgres.database() as url, asyncio.Runner() as runner:
        opening = open_tenants(url)
        tenants = runner.run(opening.__aenter__())
        yield runner, tenants
        runner.run(opening.__aexit__(None, None, None))


_examples = itertools.count()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=st.lists(st.tuples(st.booleans(), requests()), min_size=4, max_size=16))
def test_a_tenant_sees_the_same_whatever_another_does(
    opened: tuple[asyncio.Runner, Tenants], story: list[tuple[bool, Request]]
) -> None:
    """Beside another tenant every answer is the one that a tenant gets who is alone."""
    runner, tenants = opened
    number = next(_examples)

    async def answers(mine: str, other: str | None) -> list[tuple[int, str]]:
        heard = []
        for is_mine, (method, path, body, headers) in story:
            if is_mine:
                heard.append(said(await tenants.ask(mine, method, path, body, **headers), {}))
            elif other is not None:
                await tenants.ask(other, method, path, body, **headers)
        return heard

    beside = runner.run(answers(f"a{number}", f"b{number}"))
    alone = runner.run(answers(f"c{number}", None))

    assert beside == alone
    assert all(status < 500 for status, _ in beside)

"""Stock questions with prices from a provider over HTTP."""

from collections.abc import Mapping

import pytest

from tests.support.fake_tiingo import FakeTiingo, Reply
from tests.support.service import ServiceProcess

KEY = "canary-3f9a77c2b1"


def asking(tiingo: FakeTiingo) -> Mapping[str, str]:
    """Return settings of a service that uses this provider."""
    return {"TOOLS_PRICES_API_KEY": KEY, "TOOLS_PRICES_BASE_URL": tiingo.url}


@pytest.mark.req("002/5.3", "002/21.3", "001/wiring")
async def test_prices_of_a_provider_are_fetched_once_more_after_a_failure(
    database_url: str,
) -> None:
    """The answer names its source, the trace shows both attempts, and the key appears nowhere."""
    async with FakeTiingo() as tiingo:
        tiingo.replies.append(Reply(status=503, body=f"overloaded, {KEY}"))
        async with (
            ServiceProcess(database_url, settings=asking(tiingo)) as service,
            service.client() as client,
        ):
            question = "What was IBM's closing price on 2012-01-03?"
            asked = {"input": question, "expected_tools": ["data_fetch_stock"]}
            run = await client.post_run(asked, wait_seconds=120)
            trace = await client.trace(run["run_id"])
            logged = service.child.stdout + service.child.stderr

    assert (run["status"], run["result"]["answer"]) == ("completed", "186.3")
    assert run["result"]["verified"] is True
    [found] = run["result"]["evidence"]
    assert found["result"]["source"] == "live: Tiingo end-of-day prices"
    assert run["usage"]["tool_calls"] == 2
    nodes = trace["snapshot"]["nodes"].values()
    attempts = [node["status"] for node in nodes if node["name"] == "attempt"]
    assert attempts == ["fail", "success"]
    assert [request.headers["authorization"] for request in tiingo.asked] == [f"Token {KEY}"] * 2
    assert KEY not in f"{run}{trace}{logged}"


async def test_a_history_that_was_fetched_serves_later_questions(database_url: str) -> None:
    """A picture and a figure of the same share cost one request."""
    async with (
        FakeTiingo() as tiingo,
        ServiceProcess(database_url, settings=asking(tiingo)) as service,
        service.client() as client,
    ):
        drawn = await client.post_run(
            {"input": "Plot the closing price of IBM in 2009.", "expected_tools": ["plotter"]},
            wait_seconds=120,
        )
        asked = await client.post_run(
            {
                "input": "What was IBM's closing price on 2009-01-05?",
                "expected_tools": ["data_fetch_stock"],
            },
            wait_seconds=120,
        )

    assert [run["status"] for run in (drawn, asked)] == ["completed", "completed"]
    assert drawn["result"]["evidence"][0]["tool"] == "plotter"
    assert len(tiingo.asked) == 1

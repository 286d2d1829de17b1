"""What a caller writes with the client that openapi-python-client generates.

A test generates the package ``generated_client``, checks this program with ``mypy --strict`` and
executes it against a service.
"""

import json
import sys
from collections.abc import Iterator

from generated_client import AuthenticatedClient
from generated_client.api.runs import cancel_run, get_events, get_run, get_trace, post_run
from generated_client.models import (
    Budget,
    CancelBody,
    CancelReceipt,
    CaseBody,
    CaseRun,
    EdgeData,
    EdgeDataChannel,
    EdgeSpec,
    EventsPage,
    EventView,
    GraphRun,
    GraphRunBody,
    GraphSpec,
    Problem,
    RunStatus,
    StepSpec,
    StepSpecData,
    StopKind,
    TraceView,
)


def main(url: str, key: str) -> None:
    """Use the service at ``url`` as a caller would who has a ``key``."""
    with AuthenticatedClient(
        base_url=url, token=key, headers={"Accept": "application/json"}
    ) as client:
        is_answered(client)
        is_refused(client)
        is_followed_and_cancelled(client)


def is_answered(client: AuthenticatedClient) -> None:
    """Post a case, wait for it, and read its result and its usage."""
    body = CaseBody(input_="What is 17% of 2,340?", budget=Budget(max_tool_calls=3))
    run = post_run.sync(client=client, body=body, prefer="wait=20")

    assert isinstance(run, CaseRun)
    assert run.kind == "case"
    assert run.result is not None
    assert run.usage is not None
    assert run.result.answer == "397.8"
    assert run.result.evidence[0].tool == "calculator"
    assert run.result.counters.tokens.total.input_ > 0
    assert run.usage.tool_calls == run.result.counters.tool_calls == 1
    assert not run.usage.additional_properties
    assert not run.result.additional_properties
    assert run.stop is None


def is_refused(client: AuthenticatedClient) -> None:
    """Send what is not valid and read what is wrong with it."""
    refused = post_run.sync(client=client, body=CaseBody(input_=" "))

    assert isinstance(refused, Problem)
    assert isinstance(refused.errors, list)
    assert refused.errors[0].field == "input"


def is_followed_and_cancelled(client: AuthenticatedClient) -> None:
    """Run a graph whose second step hangs, follow it, cancel it, and look at its trace."""
    accepted = post_run.sync(client=client, body=hanging_graph())
    assert isinstance(accepted, GraphRun)
    assert accepted.result is None

    seen = []
    for event in events_of(client, accepted.run_id):
        seen.append(event)
        if event.type_ == "step.started" and event.step_id == "slow":
            receipt = cancel_run.sync(
                accepted.run_id, client=client, body=CancelBody(reason="It takes too long.")
            )
            assert isinstance(receipt, CancelReceipt)
            assert not receipt.already_finished
            assert receipt.reason == "It takes too long."
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type_ == "run.cancelled", [event.to_dict() for event in seen]
    is_shown_as_cancelled(client, accepted.run_id, len(seen))


def is_shown_as_cancelled(client: AuthenticatedClient, run_id: str, events: int) -> None:
    """Read the ended run, its events as a page, and its trace; cancel it once more."""
    run = get_run.sync(run_id, client=client)
    page = get_events.sync(run_id, client=client)
    trace = get_trace.sync(run_id, client=client)
    again = cancel_run.sync(run_id, client=client)

    assert isinstance(run, GraphRun)
    assert run.status is RunStatus.CANCELLED
    assert run.stop is not None
    assert run.stop.kind is StopKind.CANCELLED
    assert not run.stop.additional_properties
    assert run.result is not None
    assert run.result.steps["quick"].status.value == "completed"
    assert run.result.outputs["quick"]["default"] is not None
    assert isinstance(page, EventsPage)
    assert len(page.events) == events
    assert isinstance(trace, TraceView)
    assert trace.snapshot.root_id is not None
    root = trace.snapshot.nodes[trace.snapshot.root_id]
    assert root.parent_id is None
    assert all(
        not node.additional_properties
        for node in trace.snapshot.nodes.additional_properties.values()
    )
    assert not trace.snapshot.aggregates.additional_properties
    assert isinstance(again, CancelReceipt)
    assert again.already_finished


def hanging_graph() -> GraphRunBody:
    """Return a graph of a quick step and one whose model does not answer."""
    return GraphRunBody(
        kind="graph",
        graph=GraphSpec(
            steps=[
                StepSpec(
                    "quick",
                    "tool",
                    data_of({"tool": "respond", "args": {"answer": "It is ${default}"}}),
                ),
                StepSpec("slow", "llm", data_of({"prompt": "A slow question about ${default}"})),
            ],
            edges=[EdgeSpec("quick", "slow", EdgeData(EdgeDataChannel.FLOW))],
        ),
        input_={"any": ["JSON", 1, None]},
        budget=Budget(max_steps=10),
    )


def data_of(data: dict[str, object]) -> StepSpecData:
    """Return the data of a step."""
    return StepSpecData.from_dict(data)


def events_of(client: AuthenticatedClient, run_id: str) -> Iterator[EventView]:
    """Yield the events of a run until it has ended."""
    stream = client.get_httpx_client().stream(
        "GET", f"/runs/{run_id}/events", headers={"Accept": "text/event-stream"}, timeout=60
    )
    with stream as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield EventView.from_dict(json.loads(line.removeprefix("data: ")))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

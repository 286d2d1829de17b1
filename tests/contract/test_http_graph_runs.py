"""POST /runs with ``kind: graph`` (spec, section 10)."""

from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from caseworker.core.budget.budget import Budget
from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.http.limits import MAX_METADATA_BYTES
from caseworker.runs.run import DefinitionRef, FinishRun, RunKey, RunKind, RunStatus
from tests.support.api import Api, client_of
from tests.support.graph_documents import containing, flat, graph_ref
from tests.support.graph_requests import field_messages, register
from tests.support.limits import api_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/runs", json={"kind": "graph", "run_id": "r"} | body)


async def test_a_graph_that_is_sent_along_is_accepted(client: httpx.AsyncClient, api: Api) -> None:
    """The run stores the graph and shows no name for it."""
    posted = await post(client, graph=flat("a"), inputs={"default": 1, "rows": [{"b": None}]})

    run = await api.stored()
    assert (posted.status_code, posted.headers["location"]) == (202, "/runs/r")
    assert (posted.json()["kind"], posted.json()["graph"]) == ("graph", None)
    assert (run.kind, run.request.kind) == (RunKind.GRAPH, RunKind.GRAPH)
    assert run.request.graph == flat("a")
    assert run.request.inputs == {"default": 1, "rows": [{"b": None}]}
    assert (run.request.definition_ref, run.request.input, run.request.options) == (None, "", {})


async def test_a_registered_graph_is_run_by_its_name(client: httpx.AsyncClient, api: Api) -> None:
    """The run uses the named version, or the newest one, and reports which one it used."""
    for step in ("a", "b"):
        (await register(client, "g", flat(step))).raise_for_status()

    newest = await post(client, run_id="newest", graph=graph_ref("g"))
    first = await post(client, run_id="first", graph=graph_ref("g", 1))

    assert newest.json()["graph"] == {"name": "g", "version": 2}
    assert first.json()["graph"] == {"name": "g", "version": 1}
    assert (await client.get("/runs/first")).json()["graph"] == {"name": "g", "version": 1}
    assert [run["graph"]["version"] for run in (await client.get("/runs")).json()["runs"]] == [1, 2]
    stored = await api.stored("first")
    assert (stored.request.graph, stored.request.definition_ref) == (
        flat("a"),
        DefinitionRef("g", 1),
    )


async def test_a_run_keeps_the_graph_that_it_was_accepted_with(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Later changes to the graph or to its nested graphs do not affect the run."""
    (await register(client, "part", flat("old"))).raise_for_status()
    (await register(client, "whole", containing(graph_ref("part")))).raise_for_status()
    await post(client, graph=graph_ref("whole"))
    (await register(client, "part", flat("new"))).raise_for_status()
    await client.delete("/graphs/whole")
    await client.delete("/graphs/part")

    graph = (await api.stored()).request.graph

    assert graph is not None
    assert graph["steps"][0]["data"]["graph"] == {**flat("old"), "name": "part", "version": 1}


async def test_an_object_with_steps_is_a_graph_whatever_else_it_has(
    client: httpx.AsyncClient, api: Api
) -> None:
    """A caller can send the stored graph of one run as the graph of another."""
    (await register(client, "part", flat("a"))).raise_for_status()
    await post(client, graph=containing(graph_ref("part")))
    complete = (await api.stored()).request.graph
    assert complete is not None
    inner = complete["steps"][0]["data"]["graph"]
    await client.delete("/graphs/part")

    again = await post(client, run_id="again", graph=inner)

    assert (again.status_code, again.json()["graph"]) == (202, None)


async def test_input_is_short_for_the_usual_input(client: httpx.AsyncClient, api: Api) -> None:
    """The input can be omitted."""
    await post(client, graph=flat("a"), input="2+2?", inputs={"other": 1})
    none = await post(client, run_id="none", graph=flat("a"))

    assert (await api.stored()).request.inputs == {"default": "2+2?", "other": 1}
    assert none.status_code == 202
    assert (await api.stored("none")).request.inputs == {}


@pytest.mark.parametrize("value", ["2+2?", "", 0, False, 2.5, [], {"a": [None]}])
async def test_input_is_any_json(client: httpx.AsyncClient, api: Api, value: Any) -> None:
    """An empty input is a value: omitting it is another request."""
    posted = await post(client, graph=flat("a"), input=value)
    without = await post(client, graph=flat("a"))

    assert posted.status_code == 202
    assert (await api.stored()).request.inputs == {"default": value}
    assert without.status_code == 409


async def test_one_input_is_not_given_twice(client: httpx.AsyncClient) -> None:
    """The error names the ambiguous field ``inputs.default``."""
    refused = await post(client, graph=flat("a"), input="1", inputs={"default": None})

    assert field_messages(refused) == {
        "inputs.default": "Send this value either as input or as inputs.default, not both."
    }


async def test_all_that_runs_have_in_common_reaches_the_run(api: Api) -> None:
    """Default limits apply only to cases, while ceilings apply to every run."""
    limits = api_limits(
        budget_ceiling=Budget(max_steps=100),
        default_timezone="Europe/Paris",
        default_seed=5,
    )
    async with client_of(api.app(limits=limits)) as client:
        await post(
            client,
            graph=flat("a"),
            budget={"max_steps": 500, "max_cost_usd": 0.5},
            deadline="2030-01-01T00:00:00Z",
            seed=7,
            timezone="UTC",
            metadata={"ticket": 7},
        )
        await post(client, run_id="plain", graph=flat("a"))

    given, plain = await api.stored(), await api.stored("plain")
    assert given.request.budget == Budget(max_steps=100, max_cost_dollars=Decimal("0.5"))
    assert (given.request.seed, given.request.timezone) == (7, "UTC")
    assert given.request.deadline is not None
    assert given.metadata == {"ticket": 7}
    assert plain.request.budget == Budget(max_steps=100)
    assert (plain.request.seed, plain.request.timezone) == (5, "Europe/Paris")


@pytest.mark.parametrize(
    ("field", "value"),
    [("expected_tools", ["calculator"]), ("gold_answer", "4"), ("mode", "fallback_only")],
)
async def test_what_belongs_to_cases_is_refused(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    """The error names the field and the remedy; null counts as omitted."""
    refused = await post(client, graph=flat("a"), **{field: value})
    left_out = await post(client, graph=flat("a"), **{field: None})

    assert field_messages(refused) == {
        field: "This field is only for runs of kind case. Send that kind or omit this field."
    }
    assert left_out.status_code == 202


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("graph", flat("a"), "graph"),
        ("inputs", {"default": 1}, "graph or agent"),
        ("agent", {"name": "a", "prompt": {}}, "agent"),
        ("messages", [{"role": "user", "content": "Hello"}], "agent"),
    ],
)
async def test_what_belongs_to_other_kinds_is_refused_of_a_case(
    client: httpx.AsyncClient, field: str, value: Any, kind: str
) -> None:
    """A caller that forgot ``kind`` learns which kind the field needs."""
    refused = await client.post("/runs", json={"input": "2+2?", field: value})

    assert field_messages(refused) == {
        field: (f"This field is only for runs of kind {kind}. Send that kind or omit this field.")
    }


async def test_everything_wrong_with_the_fields_is_said_at_once(client: httpx.AsyncClient) -> None:
    """All errors are reported together, as for cases."""
    refused = await post(client, inputs=[], mode="fast", seed=1.5, unknown=1)

    assert set(field_messages(refused)) == {"graph", "inputs", "mode", "seed", "unknown"}


@pytest.mark.parametrize(
    ("graph", "field"),
    [
        ({"name": "x"}, "graph.name"),
        ({"name": "x", "version": 1}, "graph.name"),
        ({"name": "g", "version": 2}, "graph.version"),
        ({"name": "g", "version": 2**31 - 1}, "graph.version"),
        ({"name": "g", "version": 2**40}, "graph.version"),
        ({"name": "g", "version": 0}, "graph.version"),
        ({"name": "g", "version": "1"}, "graph.version"),
        ({"name": "g", "version": True}, "graph.version"),
        ({"name": "a/b"}, "graph.name"),
        ({"name": 5}, "graph.name"),
        ({"name": "g", "edges": []}, "graph.steps"),
        ({"edges": []}, "graph.steps"),
    ],
)
async def test_a_graph_that_there_is_not_is_named_by_what_is_wrong(
    client: httpx.AsyncClient, graph: dict[str, Any], field: str
) -> None:
    """The error names the unknown name, the unknown version or the missing field."""
    (await register(client, "g", flat("a"))).raise_for_status()

    assert list(field_messages(await post(client, graph=graph))) == [field]
    assert (await client.get("/runs")).json()["runs"] == []


async def test_the_fields_that_all_runs_have_keep_their_limits(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs have the size limit of a body without a graph."""
    monkeypatch.setattr(NodeCatalog, "examine", examine := Mock())
    limits = api_limits(max_input_chars=3, max_body_bytes=60)
    async with client_of(api.app(limits=limits)) as client:
        metadata, inputs = {"a": "x" * MAX_METADATA_BYTES}, {"b": "x" * 60}
        refused = await post(
            client, graph=flat("a"), input="long", metadata=metadata, inputs=inputs
        )

    assert set(field_messages(refused)) == {"input", "metadata", "inputs"}
    examine.assert_not_called()


async def test_a_case_has_no_use_for_the_room_of_a_graph(api: Api) -> None:
    """The answer is 413 at the normal limit of a body, although the route accepts larger graphs."""
    async with client_of(api.app(limits=api_limits(max_body_bytes=200))) as client:
        refused = await client.post("/runs", json={"input": "2+2?", "metadata": {"a": "x" * 300}})

    assert refused.status_code == 413
    assert refused.json()["type"] == "urn:caseworker:problem:body-too-large"


class TestAgain:
    @pytest.mark.parametrize("by", ["id", "key"])
    async def test_the_same_request_is_the_same_run_whatever_became_of_its_graph(
        self, client: httpx.AsyncClient, by: str
    ) -> None:
        """The answer stays the same after the graph has changed or was deleted."""
        body = {"kind": "graph", "graph": graph_ref("g")} | ({"run_id": "r"} if by == "id" else {})
        headers = {"Idempotency-Key": "k"} if by == "key" else {}
        (await register(client, "g", flat("a"))).raise_for_status()
        first = await client.post("/runs", json=body, headers=headers)
        (await register(client, "g", flat("b"))).raise_for_status()
        changed = await client.post("/runs", json=body, headers=headers)
        await client.delete("/graphs/g")
        deleted = await client.post("/runs", json=body, headers=headers)

        assert [answer.status_code for answer in (first, changed, deleted)] == [202, 200, 200]
        assert first.json() == changed.json() == deleted.json()

    async def test_another_request_does_not_hide_behind_an_old_one(
        self, client: httpx.AsyncClient
    ) -> None:
        """The error names the missing graph, even if the ID or idempotency key is already used."""
        (await register(client, "g", flat("a"))).raise_for_status()
        body = {"kind": "graph", "graph": graph_ref("g")}
        await client.post("/runs", json=body | {"run_id": "r"}, headers={"Idempotency-Key": "k"})
        await client.delete("/graphs/g")

        for ids, headers in (
            ({"run_id": "r"}, {}),
            ({}, {"Idempotency-Key": "k"}),
            ({"run_id": "new"}, {}),
        ):
            other = await client.post("/runs", json=body | ids | {"seed": 1}, headers=headers)
            assert list(field_messages(other)) == ["graph.name"]
        unnamed = await client.post("/runs", json=body)
        assert list(field_messages(unnamed)) == ["graph.name"]

    @pytest.mark.parametrize(
        "other",
        [
            {"graph": flat("b")},
            {"inputs": {"default": 2}},
            {"input": "1"},
            {"seed": 1},
            {"budget": {"max_steps": 1}},
        ],
    )
    async def test_everything_that_is_sent_tells_requests_apart(
        self, client: httpx.AsyncClient, other: dict[str, Any]
    ) -> None:
        """Another body under the same ID is a conflict."""
        body = {"graph": flat("a")}
        await post(client, **body)

        assert (await post(client, **body)).status_code == 200
        assert (await post(client, **(body | other))).status_code == 409


async def test_the_result_of_a_graph_is_shown_as_it_is(client: httpx.AsyncClient, api: Api) -> None:
    """The result has outputs by step and handle, and the end of each step."""
    result = {
        "outputs": {"a": {"default": 4}},
        "steps": {"a": {"status": "completed"}, "b": {"status": "error", "error": "broke"}},
    }
    await post(client, graph=flat("a", "b"))
    run = await api.store.claim(RunKey("default", "r"), "worker")
    assert run is not None
    end = FinishRun(
        key=run.key,
        fence=run.fence,
        status=RunStatus.FAILED,
        finish_reason=None,
        result=result,
        usage={},
        stop=None,
        active_seconds=0.1,
        calls=(),
        snapshot={},
    )
    await api.journal.finish(end)

    shown = (await client.get("/runs/r")).json()

    assert (shown["status"], shown["result"]) == ("failed", result)


async def test_an_early_stop_wins_over_a_graph_run_too(client: httpx.AsyncClient) -> None:
    """The early cancel wins as it does for a case."""
    await client.delete("/runs/r")

    assert (await post(client, graph=flat("a"))).json()["status"] == "cancelled"

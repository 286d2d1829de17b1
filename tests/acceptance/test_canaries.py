"""No secret and no personal data reaches a log, a trace, an event or an error (spec, 11.10).

Canaries are planted in everything that comes from outside: questions, gold answers, metadata,
headers, graphs, arguments and results of tools, replies and errors of a model provider, reasons of
stops, and requests that are refused. Runs complete, fail, are halted and are cancelled. Then
everything that the service shows or keeps is searched for them.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from tests.support.canaries import planted
from tests.support.canary_other_requests import send_other_requests
from tests.support.canary_requests import CanaryRequests, payload_of
from tests.support.collector import Collector
from tests.support.fake_provider.arrivals import Arrival
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.mcp_servers import ROOT
from tests.support.service import ServiceProcess, model_settings
from tests.support.surfaces import Surface, columns_of, plain, views_of, without_payload
from tests.support.webhook_receiver import receiving

MODEL_KEY = "sk-proj-OperatorsOwnKey0123456789abcdef"
OPERATOR_KEY = "operator-" + "7" * 32

CONTENT_COLUMNS = frozenset(
    {
        *(
            "runs.request",
            "runs.metadata",
        ),  # input of the caller, stored to execute the run and to return it
        *("runs.result", "calls.value"),  # results of the caller, and their journal
        *(
            "definitions.definition",
            "definitions.description",
        ),  # definitions of the caller, stored to return them
        *("approvals.message", "approvals.arguments", "approvals.changed_arguments"),  # to decide
        *("schedules.sent", "schedules.request", "schedules.metadata"),
        *("threads.title", "threads.inputs", "threads.metadata", "messages.content"),
        *("runs.webhook", "webhook_deliveries.url", "runs.concurrency_key"),
    }
)
"""Columns that keep the original data of callers."""

KEY_NAME = "key name"
"""The canary in the name of the key that sends all requests."""
AUTHOR_COLUMNS = frozenset(
    {
        *("api_keys.name", "runs.cancel_requested_by", "runs.stop"),
        *("approvals.decided_by", "calls.value", "calls.node", "events.data", "audit.actor"),
    }
)
"""Columns with the author of a cancel request, decision or act: key names are not redacted."""

TIMEOUT = httpx.Timeout(60)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Run a collector of spans."""
    with Collector() as listening:
        yield listening


@pytest.fixture(scope="module")
def service_settings(
    running_provider: FakeProvider, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the settings of a service that logs and exports everything it can."""
    server = {
        "command": sys.executable,
        "args": ["-m", "tests.support.hostile_mcp", str(tmp_path_factory.mktemp("mcp") / "log")],
        "env": ["PYTHONPATH"],
        "allow": ["confide"],
        "start_timeout_seconds": 120,
    }
    return {
        **model_settings(running_provider.openai_url),
        "LOGGING_LEVEL": "debug",
        "LOGGING_ACCESS": "true",
        "TELEMETRY_METRICS_LABELS": "tenant,agent",
        "WEBHOOKS_ALLOW_HTTP": "true",
        "WEBHOOKS_ALLOW_PRIVATE": "true",
        "WEBHOOKS_MAX_ATTEMPTS": "1",
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
        "TOOLS_MCP_SERVERS": json.dumps({"hostile": server}),
        "PYTHONPATH": str(ROOT),
        "TELEMETRY_OTLP_ENDPOINT": collector.url,
        "MODELS_SMALL_API_KEY": MODEL_KEY,
        "MODELS_BIG_API_KEY": MODEL_KEY,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def key(service: ServiceProcess) -> dict[str, str]:
    """Return the header of a key whose name contains a canary."""
    body = {"name": planted("key name").of("email").needle, "scopes": ["admin"]}
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    async with httpx.AsyncClient(base_url=service.url, timeout=TIMEOUT, trust_env=False) as http:
        created = await http.post("/keys", json=body, headers=operator)
    return {"Authorization": f"Bearer {created.json()['key']}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def requests(
    service: ServiceProcess, running_provider: FakeProvider, key: dict[str, str]
) -> AsyncIterator[CanaryRequests]:
    """Send all requests, and return them with their results."""
    async with (
        receiving() as receiver,
        httpx.AsyncClient(
            base_url=service.url, timeout=TIMEOUT, trust_env=False, headers=key
        ) as http,
    ):
        requests = CanaryRequests(http, running_provider)
        requests.plant_one("key name", "email")
        assert (await http.post("/webhooks/secret")).is_success
        await requests.send_all()
        await send_other_requests(requests, receiver)
        yield requests


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arrivals(requests: CanaryRequests) -> list[Arrival]:
    """Return the requests that reached the model provider."""
    return await requests.provider.arrivals(bodies=True)


@pytest.fixture(scope="module")
def database(requests: CanaryRequests, module_database_url: str) -> list[Surface]:
    """Return every value of every table after all requests; some tables must not be empty."""
    columns = list(columns_of(module_database_url))
    tables = {surface.name.partition(".")[0] for surface in columns}
    assert tables >= {"runs", "calls", "events", "definitions", "workers"}
    assert requests.runs
    return columns


@pytest.mark.asyncio(loop_scope="module")
async def test_every_run_ended_as_it_was_meant_to(requests: CanaryRequests) -> None:
    """Otherwise the searches below would prove nothing."""
    assert {name: run["status"] for name, run in requests.runs.items()} == {
        "completed": "completed",
        "wrong": "failed",
        "provider failed": "failed",
        "no plan": "failed",
        "gave up": "failed",
        "tool failed": "failed",
        "halted": "halted",
        "cancelled": "cancelled",
        "cancelled early": "cancelled",
        "graph completed": "completed",
        "graph failed": "failed",
        "graph unfit": "failed",
        "graph halted": "halted",
        "graph cancelled": "cancelled",
        "approved": "completed",
        "refused": "failed",
        "scheduled": "completed",
        "talked": "completed",
        "server answer": "completed",
        "server fail": "failed",
        "server break": "failed",
    }


@pytest.mark.asyncio(loop_scope="module")
async def test_every_canary_reached_its_place(
    requests: CanaryRequests, arrivals: list[Arrival], database: list[Surface]
) -> None:
    """Prompts reached the provider, replies the journal, and the stored fields are intact."""
    prompts = json.dumps([arrival.prompt for arrival in arrivals])
    content = json.dumps([surface.text for surface in database if surface.name in CONTENT_COLUMNS])
    in_prompts = [name for name in requests.canaries if name.startswith("question")]
    in_prompts.remove("question cancelled early")
    in_prompts += ["prompt", "system", "graph input", "unfit prompt", "hanging prompt", "unknown"]
    stored = ["reply", "gold", "metadata", "prose", "cannot", "planned date", "graph date"]
    stored += [
        "unfit reply",
        "refused args",
        "kept prompt",
        "description",
        "tool name",
        "question cancelled early",
    ]
    stored += ["message approved", "message refused", "asked approved", "changed", "mcp answer"]
    stored += ["scheduled input", "scheduled metadata", "thread input", "thread metadata", "said"]
    stored += ["title", "webhook approved", "concurrency approved"]

    for places, where in ((in_prompts, prompts), (stored, content)):
        for place in places:
            for canary in requests.canaries[place].all:
                assert canary.needle in where, (place, canary.kind)
    assert any(surface.name == "definitions.definition" for surface in database)
    assert {arrival.headers["authorization"] for arrival in arrivals} == {f"Bearer {MODEL_KEY}"}
    assert requests.canaries["reply"].of("email").needle in payload_of(requests.runs["completed"])
    assert "[email]" in requests.runs["cancelled"]["stop"]["reason"]
    assert "[secret]" in requests.runs["cancelled early"]["stop"]["reason"]
    assert len(requests.answers) > 40


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.2")
@pytest.mark.guarantee(15)
async def test_no_canary_is_in_the_output_of_the_process(
    requests: CanaryRequests, service: ServiceProcess
) -> None:
    """The log level is debug, and the output is not empty."""
    lines = [json.loads(line) for line in service.child.stderr.splitlines() if line]
    output = Surface("output", service.child.stdout + service.child.stderr)

    assert {"process.open", "run.finished"} <= {line["event"] for line in lines}
    assert requests.leaks([output, Surface("lines", plain(lines))]) == []
    assert MODEL_KEY not in output.text
    assert "http.request" in {line["event"] for line in lines}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.guarantee(15)
async def test_no_canary_is_in_metrics_or_spans(
    requests: CanaryRequests, service: ServiceProcess, collector: Collector
) -> None:
    """Spans contain no content, not even the redacted content of the trace."""
    async with httpx.AsyncClient(trust_env=False) as anonymous:
        metrics = (await anonymous.get(f"{service.url}/metrics")).text
    await asyncio.to_thread(collector.wait_for_all, len(requests.answers))
    spans = "\n".join(map(str, collector.spans))

    assert "caseworker_run_duration_seconds_count" in metrics
    assert "invoke_workflow" in spans
    assert requests.leaks([Surface("metrics", metrics), Surface("spans", spans)]) == []
    assert MODEL_KEY not in metrics + spans


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.2")
@pytest.mark.guarantee(15)
async def test_no_canary_is_kept_beyond_what_a_run_needs(
    requests: CanaryRequests, database: list[Surface]
) -> None:
    """Only requests, results and the journal contain them, and no other column has a copy."""
    elsewhere = [surface for surface in database if surface.name not in CONTENT_COLUMNS]

    assert requests.leaks(elsewhere, exempt=KEY_NAME) == []
    named = {each.name for each in database if requests.canaries[KEY_NAME].leaked_into(each.text)}
    assert named == AUTHOR_COLUMNS
    assert not any(MODEL_KEY in surface.text for surface in database)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.2", "002/13.5")
@pytest.mark.guarantee(15)
async def test_no_canary_is_in_what_is_told_of_a_run(requests: CanaryRequests) -> None:
    """The run's view, log, trace in every form, events and receipt are clean."""
    for name, run in requests.runs.items():
        views = await views_of(requests.http, run["run_id"])
        assert requests.leaks(views, exempt=KEY_NAME) == [], name
        assert all(surface.text for surface in views)
    listed = (await requests.http.get("/runs", params={"limit": 200})).json()["runs"]

    assert len(listed) == len(requests.runs)
    shown = Surface("list", plain([without_payload(run) for run in listed]))
    assert requests.leaks([shown], exempt=KEY_NAME) == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/23.5")
async def test_no_refusal_repeats_what_was_sent(requests: CanaryRequests) -> None:
    """Bodies and headers of answers are clean, and every refusal states a reason."""
    for answer in requests.answers:
        shown = Surface(str(answer.request.url.path)[:5], answer.text + str(answer.headers.raw))
        assert requests.leaks([shown], exempt=KEY_NAME) == [], answer.text
        if answer.status_code >= 400:
            assert answer.json()["detail"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_gold_answer_is_known_to_the_verifier_alone(
    requests: CanaryRequests,
    arrivals: list[Arrival],
    database: list[Surface],
    service: ServiceProcess,
) -> None:
    """The gold answer is stored only in the request and appears nowhere else, prompts included."""
    gold = requests.canaries["gold"]
    run = requests.runs["wrong"]
    views = await views_of(requests.http, run["run_id"])
    surfaces = [
        *(surface for surface in database if surface.name != "runs.request"),
        *(Surface("prompt", arrival.prompt + plain(arrival.body)) for arrival in arrivals),
        *(Surface("output", service.child.stderr), Surface("result", plain(run)), *views),
    ]

    assert [leak for surface in surfaces for leak in gold.leaked_into(surface.text)] == []
    assert run["finish_reason"] == "big_fail"
    assert "right one" in run["stop"]["reason"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.1", "002/19.4", "002/19.5")
async def test_a_redacted_trace_still_tells_what_happened(
    requests: CanaryRequests, running_provider: FakeProvider
) -> None:
    """Calculations, dates and IDs stay, and the log of a case has all its fields."""
    args = {"expression": "0.17 * 2340 + 1,234.50", "precision": 2}
    plan = {"actions": [{"tool": "calculator", "args": {"expression": args["expression"]}}]}
    await running_provider.script("How much", [Step(plan=plan)])
    body = {"input": "How much is 17% of 2,340 since 2025-09-08?"}

    run = (await requests.http.post("/runs", json=body, headers={"Prefer": "wait=120"})).json()
    trace = (await requests.http.get(f"/runs/{run['run_id']}/trace")).json()

    shown = [node["metadata"].get("args") for node in trace["snapshot"]["nodes"].values()]
    assert {"expression": args["expression"]} in shown
    fields = {name for entry in run["result"]["logs"] for name in entry}
    assert fields >= {"ts", "tier", "step_type", "run_id"}
    assert fields >= {"token_usage", "tool", "args", "output_summary", "metric", "decision"}


@pytest.mark.asyncio(loop_scope="module")
async def test_full_payloads_are_shown_to_those_who_ask_for_them(
    module_database_url: str, running_provider: FakeProvider, key: dict[str, str]
) -> None:
    """This also proves that the searches above would find a leak."""
    settings = {**model_settings(running_provider.openai_url), "TRACE_PAYLOADS": "full"}
    async with (
        ServiceProcess(module_database_url, settings=settings) as service,
        httpx.AsyncClient(
            base_url=service.url, timeout=TIMEOUT, trust_env=False, headers=key
        ) as http,
    ):
        requests = CanaryRequests(http, running_provider)
        answer = requests.plant("opted in")
        plan = {"actions": [{"tool": "respond", "args": {"answer": answer}}]}
        await running_provider.script("Everything", [Step(plan=plan)])
        body = {"input": "Everything?"}
        run = (await http.post("/runs", json=body, headers={"Prefer": "wait=120"})).json()
        views = await views_of(http, run["run_id"])

    assert {leak.partition(" in ")[2] for leak in requests.leaks(views)} == {
        *("trace", "payloads", "call", "explain"),
    }
    assert len(requests.leaks(views)) >= len(requests.canaries["opted in"].all) - 1

"""What both clients send, how often they retry, and how they read the answers."""

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from inspect import signature
from typing import Any

import httpx
import pytest
from caseworker_client import (
    ApiError,
    AsyncCaseworkerClient,
    CaseworkerClient,
    CaseworkerError,
    Event,
    RetryPolicy,
    Run,
    ServiceUnreachableError,
    StreamedText,
)
from caseworker_client.events import SseParser
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.callers import Callers

RUN = {"run_id": "r", "status": "queued", "created_at": "2025-01-01T00:00:00Z"}


class Service:
    """Sends each of its answers once, and repeats the last one."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


ACCEPTED = httpx.Response(202, json=RUN)
BUSY = httpx.Response(503, json={"title": "Busy"})
LOST = httpx.ReadError("reset")


def test_both_clients_have_the_same_methods() -> None:
    """All methods have equal parameters in both clients."""

    def methods(client: Any) -> dict[str, str]:
        names = [name for name in dir(client) if not name.startswith("_")]
        return {name: str(signature(getattr(client, name))) for name in names if name != "settings"}

    blocking = methods(CaseworkerClient("http://nowhere"))
    awaiting = methods(AsyncCaseworkerClient("http://nowhere"))

    assert blocking.keys() == awaiting.keys()
    own = {"close", "do", "iterate"}
    assert {blocking[name] == awaiting[name] for name in blocking.keys() - own} == {True}
    assert len(blocking) > 25


@pytest.mark.parametrize("passing", [BUSY, LOST, httpx.ConnectError("no"), httpx.Response(429)])
async def test_a_new_run_is_asked_for_again_under_the_same_key(
    callers: Callers, passing: httpx.Response | Exception
) -> None:
    """The client repeats the request until it is accepted."""
    service = Service(passing, passing, ACCEPTED)

    run = await callers.answered_by(service).do("run_case", "What?", seed=7)

    assert isinstance(run, Run)
    assert {request.read() for request in service.asked} == {b'{"input":"What?","seed":7}'}
    [key] = {request.headers["idempotency-key"] for request in service.asked}
    assert len(service.asked) == 3
    assert len(key) == 36


async def test_a_run_with_an_id_or_a_key_needs_no_other(callers: Callers) -> None:
    """The caller's ID and key are sent unchanged."""
    service = Service(ACCEPTED)
    caller = callers.answered_by(service)

    await caller.do("create_run", {"input": "x", "run_id": "r"}, wait_seconds=1.5)
    await caller.do("run_graph", {"steps": []}, idempotency_key="mine")

    named, keyed = service.asked
    assert "idempotency-key" not in named.headers
    assert named.headers["prefer"] == "wait=2"
    assert keyed.headers["idempotency-key"] == "mine"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"name": "a", "prompt": {}}, {"name": "a", "prompt": {}}),
        ("a", {"name": "a"}),
        ("a@3", {"name": "a", "version": 3}),
        ("a@x", {"name": "a", "version": "x"}),  # the service reports the error
    ],
)
async def test_a_definition_is_run_by_its_name_or_as_it_is(
    callers: Callers, given: Any, sent: dict[str, Any]
) -> None:
    """Omitted arguments are not sent."""
    service = Service(ACCEPTED)
    caller = callers.answered_by(service)

    await caller.do("run_agent", given, "Hi", run_id="r")
    await caller.do("run_graph", given, run_id="r")

    agent, graph = (json.loads(request.content) for request in service.asked)
    assert agent == {"kind": "agent", "agent": sent, "input": "Hi", "run_id": "r"}
    assert graph == {"kind": "graph", "graph": sent, "inputs": {}, "run_id": "r"}


async def test_what_is_registered_has_its_name_beside_it_or_in_it(callers: Callers) -> None:
    """A graph is registered with a separate name, an agent contains its own."""
    service = Service(httpx.Response(201, json={"name": "a", "version": 1}))
    caller = callers.answered_by(service)

    await caller.do("register_graph", "g", {"steps": []})
    await caller.do("register_agent", {"name": "a", "prompt": {}})

    graph, agent = (json.loads(request.content) for request in service.asked)
    assert (graph["name"], graph["graph"]) == ("g", {"steps": []})
    assert agent == {"agent": {"name": "a", "prompt": {}}}
    assert [request.url.path for request in service.asked] == ["/graphs", "/agents"]


async def test_runs_are_listed_by_what_they_are(callers: Callers) -> None:
    """Each metadata key is a separate parameter."""
    service = Service(httpx.Response(200, json={"runs": []}))

    await callers.answered_by(service).do(
        "list_runs", kind="agent", agent="a", thread_id="t", metadata={"ticket": "7"}
    )

    assert dict(service.asked[0].url.params) == {
        "limit": "50",
        "kind": "agent",
        "agent": "a",
        "thread_id": "t",
        "metadata.ticket": "7",
    }


async def test_a_failure_that_stays_is_raised_after_the_last_attempt(callers: Callers) -> None:
    """The error contains the last answer."""
    service = Service(BUSY)

    with pytest.raises(ApiError, match=r"Busy\.") as raised:
        await callers.answered_by(service).do("get_run", "r")

    assert (raised.value.status, len(service.asked)) == (503, 4)


async def test_nobody_there_is_an_error_of_its_own(callers: Callers) -> None:
    """The error is raised after the configured number of attempts."""
    service = Service(httpx.ConnectError("refused"))
    retry = RetryPolicy(attempts=2, pause_factor=0)

    with pytest.raises(ServiceUnreachableError, match=r"http://made\.up: refused"):
        await callers.answered_by(service, retry=retry).do("get_run", "r")

    assert len(service.asked) == 2


@pytest.mark.parametrize("failure", [LOST, BUSY])
async def test_what_may_have_been_done_is_not_done_twice(
    callers: Callers, failure: httpx.Response | Exception
) -> None:
    """A second deletion would act on another state."""
    service = Service(failure)

    with pytest.raises((ApiError, ServiceUnreachableError)):
        await callers.answered_by(service).do("delete_graph", "g")

    assert len(service.asked) == 1


@pytest.mark.parametrize(
    "later", [lambda: "31", lambda: format_datetime(datetime.now(UTC) + timedelta(hours=1))]
)
async def test_a_service_that_asks_for_too_much_time_is_not_waited_for(
    callers: Callers, later: Callable[[], str]
) -> None:
    """The delay may be in seconds or a date."""
    service = Service(httpx.Response(503, headers={"retry-after": later()}))

    with pytest.raises(ApiError) as raised:
        await callers.answered_by(service).do("get_run", "r")

    assert len(service.asked) == 1
    assert (raised.value.retry_after_seconds or 0) > 30


async def test_a_refusal_tells_everything_that_the_problem_document_does(callers: Callers) -> None:
    """The request is not repeated."""
    problem = {
        "type": "urn:caseworker:problem:invalid-request",
        "title": "Invalid request",
        "detail": "Correct it.",
        "errors": [{"field": "input", "message": "It is blank.", "new": 1}],
        "request_id": "q1",
    }
    service = Service(httpx.Response(422, json=problem))

    with pytest.raises(ApiError) as raised:
        await callers.answered_by(service).do("run_case", "")

    error = raised.value
    assert (error.status, error.type.rpartition(":")[2]) == (422, "invalid-request")
    assert (error.title, error.detail) == ("Invalid request", "Correct it.")
    assert [(each.field, each.message) for each in error.errors] == [("input", "It is blank.")]
    assert (error.request_id, error.problem, len(service.asked)) == ("q1", problem, 1)
    assert str(error) == "Invalid request. Correct it.\ninput: It is blank."


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b'{"errors": [5]}'])
@pytest.mark.parametrize("status", [200, 500])
async def test_what_is_not_the_service_is_an_error(
    callers: Callers, status: int, content: bytes
) -> None:
    """Any other answer raises an error."""
    service = Service(httpx.Response(status, content=content))

    with pytest.raises(ApiError) as raised:
        await callers.answered_by(service).do("get_run", "r")

    assert raised.value.status == status


async def test_a_newer_service_does_not_break_an_older_client(callers: Callers) -> None:
    """Unknown fields and values are kept."""
    newer = {**RUN, "status": "dreaming", "kind": "poem", "verses": [1], "usage": {"ink": 3}}

    run = await callers.answered_by(Service(httpx.Response(200, json=newer))).do("get_run", "r")

    assert (run.status, run.kind, run.verses) == ("dreaming", "poem", [1])
    assert run.usage.ink == 3
    assert run.as_json() == newer


async def test_address_and_key_come_from_the_environment(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments take precedence, and the key is never shown."""
    monkeypatch.setenv("CASEWORKER_URL", "http://there/below/")
    monkeypatch.setenv("CASEWORKER_API_KEY", "secret-1")
    service = Service(ACCEPTED)
    with CaseworkerClient(transport=httpx.MockTransport(service)) as client:
        client.get_run("a/../b")
    await callers.answered_by(service, api_key="secret-2").do("get_run", "r")

    first, second = service.asked
    assert str(first.url) == "http://there/below/runs/a%2F..%2Fb"
    assert first.headers["authorization"] == "Bearer secret-1"
    assert second.headers["authorization"] == "Bearer secret-2"
    assert "secret" not in repr(client.settings)


@pytest.mark.parametrize("key", ["secret\nkey", "secret-ké", "secret\x7f"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    """An error would repeat it; a trailing line break, as in files, is removed."""
    with pytest.raises(CaseworkerError) as refused:
        CaseworkerClient(api_key=key)
    with CaseworkerClient(api_key="mine\n") as client:
        headers = client.settings.headers

    assert "secret" not in str(refused.value)
    assert headers == {"Authorization": "Bearer mine"}


@given(
    data=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1)),
    cuts=st.lists(st.integers(0, 400)),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_events_are_found_wherever_the_bytes_are_cut(
    data: list[str], cuts: list[int], end: str
) -> None:
    """Comments and other fields are skipped, and an unfinished event is ignored."""
    sent = ": hi\n\n" + "".join(f"id: 1{end}data: {each}{end}{end}" for each in data)
    whole = f"{sent}data: cut off{end}".encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    parser = SseParser()

    found = [
        each.decode()
        for begin, stop in itertools.pairwise(places)
        for each in parser.feed(whole[begin:stop])
    ]

    assert found == data


def piece(offset: int, content: str, *, turn: int = 1, kind: str = "content_chunk") -> Event:
    data = {"turn_number": turn, "offset": offset, "content": content}
    return Event(run_id="r", seq=1, ts=datetime.now(UTC), type=kind, step_id="s", data=data)


def test_a_piece_of_text_replaces_what_comes_after_its_beginning() -> None:
    """A repeated call replaces its text from the given offset."""
    text = StreamedText()
    for event in (piece(0, "Hello "), piece(6, "wurld"), piece(6, "world"), piece(0, "hm", turn=2)):
        assert text.add(event)
    text.add(piece(0, "think", kind="thinking"))

    assert text.of(1, step_id="s") == "Hello world"
    assert text.of(1, step_id="s", kind="thinking") == "think"
    assert text.content == "hm"
    assert text.add(piece(0, "Bye", turn=1))
    assert text.content == text.of(1, step_id="s") == "Bye"
    assert not text.add(Event(run_id="r", seq=1, ts=datetime.now(UTC), type="step.started"))
    with pytest.raises(ValueError, match="continues a text at 9, beyond 3"):
        text.add(piece(9, "x"))
    assert [tuple(key) for key in text.texts] == [
        ("s", 2, "content_chunk"),
        ("s", 1, "thinking"),
        ("s", 1, "content_chunk"),
    ]

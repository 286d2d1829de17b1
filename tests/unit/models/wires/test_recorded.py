"""Recordings of model replies, and the provider that replays them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caseworker.models.ports import (
    Delta,
    Message,
    ModelEndpoint,
    ModelError,
    ModelFault,
    ModelReply,
    ModelRequest,
    RequestOrigin,
    TokenUsage,
)
from caseworker.models.prices import list_price
from caseworker.models.recorded import (
    RecordedProvider,
    Recorder,
    RecordingProvider,
    case_of,
    sent_hash,
)

HEADER = {"models": [{"model": "m"}]}
REPLY = ModelReply(text="forty\u2028two", model="m-1", usage=TokenUsage(tokens_in=9, tokens_out=2))
LATE = ModelError("m: no answer", retryable=True, status=503)


def asking(run_id: str = "eval-1:sum", call: str = "plan", attempt: int = 1) -> ModelRequest:
    """Return a request of one call that contains today's date."""
    content = json.dumps({"question": "why?", "run": run_id, "today": "Wednesday, January 1, 2025"})
    return ModelRequest(
        messages=(Message(role="user", content=content),),
        timeout_seconds=0.0,
        origin=RequestOrigin(run_id=run_id, call=call, attempt=attempt),
    )


class Endpoint:
    """A provider that returns or raises the given outcomes in order."""

    name = "endpoint"
    external = True

    def __init__(self, *outcomes: ModelReply | BaseException) -> None:
        self._outcomes = list(outcomes)

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def aclose(self) -> None: ...


async def recorded(
    path: Path, *asked: tuple[ModelRequest, ModelReply | BaseException], model: str = "m"
) -> Path:
    """Record the outcomes of some requests and return the file."""
    recorder = Recorder(path / "r.jsonl", HEADER)
    provider = RecordingProvider(Endpoint(*(outcome for _, outcome in asked)), recorder)
    for request, outcome in asked:
        if isinstance(outcome, BaseException):
            with pytest.raises(type(outcome)):
                await provider.complete(model, request)
        else:
            assert await provider.complete(model, request) == outcome
    recorder.close()
    return path / "r.jsonl"


def replaying(path: Path) -> RecordedProvider:
    """Return the provider that replays a recording of the model ``m``."""
    return RecordedProvider(ModelEndpoint(model="m", recording=str(path)))


async def test_a_reply_comes_back_as_it_was_in_any_later_run_of_the_case(tmp_path: Path) -> None:
    """The date and the evaluation may differ; usage is replayed, also if it was missing."""
    silent = replace(REPLY, usage=None, finish_reason="stop")
    path = await recorded(tmp_path, (asking(), REPLY), (asking(call="reprompt"), silent))
    replay = replaying(path)
    later = asking("eval-2:sum")
    later = replace(
        later,
        timeout_seconds=9,
        messages=(
            replace(later.messages[0], content=later.messages[0].content.replace("01", "02")),
        ),
    )

    assert await replay.complete("m", later) == REPLY
    assert await replay.complete("m", asking("eval-2:sum", "reprompt")) == silent


async def test_a_run_whose_id_is_made_up_finds_what_was_asked_in_another(tmp_path: Path) -> None:
    """Purpose and request identify the reply; its text is streamed if the caller asks for it."""
    said = replace(REPLY, text="forty two,\n  or so ", thinking="let me see")
    unnamed = ModelRequest(messages=(Message(role="user", content="why?"),))

    def origin(run_id: str, call: str = "plan") -> ModelRequest:
        return replace(unnamed, origin=RequestOrigin(run_id=run_id, call=call))

    replay = replaying(await recorded(tmp_path, (origin("one"), said)))
    parts: list[Delta] = []

    assert await replay.complete("m", replace(origin("two"), on_delta=parts.append)) == said
    assert [part.text for part in parts if part.kind == "thinking"] == ["let", " me", " see"]
    assert len(parts) > 5
    assert "".join(part.text for part in parts if part.kind == "content") == said.text
    for other in (origin("two", "answer"), replace(origin("two"), seed=4)):
        with pytest.raises(ModelError, match="record it again"):
            await replay.complete("m", other)


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, False),
        ({"timeout_seconds": 1.0}, False),
        ({"seed": 4}, True),
        ({"temperature": 0.5}, True),
        ({"max_output_tokens": 7}, True),
        ({"json_object": True}, True),
        ({"json_schema": {"type": "object"}}, True),
        ({"messages": (Message(role="user", content="what?"),)}, True),
        ({"messages": (Message(role="system", content="why?"),)}, True),
    ],
)
def test_whatever_is_sent_tells_requests_apart(changes: dict[str, Any], changed: bool) -> None:
    """Every sent field and the model count; the timeout does not."""
    one = asking()

    assert (sent_hash("m", one) != sent_hash("m", replace(one, **changes))) is changed
    assert sent_hash("m", one) != sent_hash("other", one)


async def test_a_failure_is_kept_if_no_retry_has_mended_it(tmp_path: Path) -> None:
    """A failure without a successful retry replays with its class and status and is not retried."""
    path = await recorded(
        tmp_path,
        (asking(call="a"), LATE),
        (asking(call="a", attempt=2), REPLY),
        (asking(call="b"), LATE),
        (asking(call="c"), asyncio.CancelledError()),
    )
    replay = replaying(path)

    assert await replay.complete("m", asking(call="a")) == REPLY
    for call, status in (("b", 503), ("c", None)):
        with pytest.raises(ModelError) as failed:
            await replay.complete("m", asking(call=call))
        found = (failed.value.fault, failed.value.status, failed.value.retryable)
        assert found == (ModelFault.UNAVAILABLE, status, False)


async def test_what_was_not_recorded_or_not_like_this_is_refused(tmp_path: Path) -> None:
    """The error is not retryable, and its message names the case and the reason."""
    replay = replaying(await recorded(tmp_path, (asking(), REPLY)))
    changed = replace(asking(), seed=1)
    for request, why in (
        (asking("eval-1:other"), "case other, purpose plan, attempt 1: there is no such exchange"),
        (asking(attempt=2, call="x"), "case sum, purpose x, attempt 2: there is no such exchange"),
        (changed, "case sum, purpose plan, attempt 1: the request has changed in r.jsonl"),
        (replace(asking(), origin=None), "the request belongs to no run"),
    ):
        with pytest.raises(ModelError, match=why) as refused:
            await replay.complete("m", request)
        assert refused.value.fault is ModelFault.REFUSED


async def test_a_call_that_was_made_in_a_simpler_form_is_sent_there(tmp_path: Path) -> None:
    """The replay rejects the schema as the endpoint did, so the caller uses the simpler form."""
    replay = replaying(await recorded(tmp_path, (asking(call="plan/json"), REPLY)))

    with pytest.raises(ModelError) as refused:
        await replay.complete("m", asking(call="plan"))

    assert refused.value.fault is ModelFault.SCHEMA_REFUSED


async def test_a_recording_costs_what_its_model_costs(tmp_path: Path) -> None:
    """The price is found by the model's name, whichever provider served it."""
    usage = TokenUsage(tokens_in=1_000_000, tokens_out=0)

    cost = list_price("recorded", "gpt-5-nano", usage)
    assert cost == list_price("openai", "gpt-5-nano", usage)
    assert cost.total > 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a recording of format 1"),
        ("{}", "is not a recording of format 1"),
        ('{"format": 1, "models": [{"model": "other"}]}', "holds other and not m"),
        ('{"format": 1, "models": [{"model": "m"}]}\n{}\n', "line 2 is not an exchange"),
    ],
)
def test_a_file_that_is_no_recording_of_the_model_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    """The file is rejected before the first call."""
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        replaying(path)
    with pytest.raises(OSError, match="absent"):
        replaying(tmp_path / "absent")


async def test_a_line_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """With two lines for one exchange, the reply to replay would be ambiguous."""
    path = await recorded(tmp_path, (asking(), REPLY))
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:2], lines[1]]))

    with pytest.raises(ValueError, match="line 3 repeats an exchange"):
        replaying(path)


def test_a_run_without_a_case_stands_for_itself() -> None:
    """The part after the first colon names the case, repeats included."""
    assert [case_of(name) for name in ("r1", "eval-1:sum", "eval-1:sum:2")] == [
        "r1",
        "sum",
        "sum:2",
    ]

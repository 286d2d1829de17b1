"""Published replies of real endpoints over real sockets, played by the fake provider."""

from caseworker.models.ports import Message, ModelError, ModelReply, ModelRequest
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider import FakeProvider, Step
from tests.unit.models.wires.captured import Capture, captures, read


def _said(error: ModelError) -> tuple[str, str, bool]:
    return str(error), error.fault.value, error.retryable


async def _expected(capture: Capture) -> ModelReply | tuple[str, str, bool]:
    try:
        return await read(capture)
    except ModelError as error:
        return _said(error)


async def test_every_capture_is_read_alike_over_a_connection(fake: FakeProvider) -> None:
    """A capture replayed by the fake provider gives the same reply as parsing it directly."""
    openai = openai_provider(base_url=fake.openai_url)
    anthropic = anthropic_provider(base_url=fake.url)
    played = 0
    for capture in captures():
        kind = "text/event-stream" if capture.streamed else "application/json"
        step = Step(
            raw_body=capture.body.decode(), status=capture.status, headers={"content-type": kind}
        )
        await fake.script(capture.id, [step])
        request = ModelRequest(
            messages=(Message(role="user", content=capture.id),),
            on_delta=(lambda _: None) if capture.streamed else None,
        )
        provider = openai if capture.dialect == "openai" else anthropic
        got: ModelReply | tuple[str, str, bool]
        try:
            got = await provider.complete("asked-model", request)
        except ModelError as error:
            got = _said(error)
        expected = await _expected(capture)
        if isinstance(got, ModelReply) and isinstance(expected, ModelReply):
            assert (got.text, got.tool_calls, got.usage, got.thinking) == (
                expected.text,
                expected.tool_calls,
                expected.usage,
                expected.thinking,
            ), capture.id
        else:
            assert got == expected, capture.id
        played += 1
    await openai.aclose()
    await anthropic.aclose()

    assert played == len(captures())

"""Repairs of a reply, and the raw text of a failed one, are stored and shown."""

import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from caseworker.core.trace.payloads import PayloadMode, Payloads
from caseworker.engine.call import CallFailedError
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, priced

THOUGHT = {"choices": [{"message": {"content": "<think>Hm.</think>42"}, "finish_reason": "fin"}]}
REPAIRS = ["think_tags", "finish_reason_unknown"]


def test_repairs_are_journaled_shown_at_the_call_and_logged_once() -> None:
    """A replayed answer lists its repairs without logging them again."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(raw_body=json.dumps(THOUGHT)))
        first = await asking.ask()
        asking.begin(asking.run.journal)
        assert await asking.ask() == first
        assert (first.text, first.repairs) == ("42", tuple(REPAIRS))

    with capture_logs() as lines:
        asked = asking_after(story, priced("first"))

    (line,) = (line for line in lines if line["event"] == "model.reply_repaired")
    assert (line["kinds"], line["model"], line["call_key"]) == (REPAIRS, "first", "step/plan")
    assert asked.calls() == []  # the second execution made no call


def test_the_node_of_a_call_names_its_repairs() -> None:
    """The node lists repairs only if there are any."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(raw_body=json.dumps(THOUGHT)), Step(text="42"))
        await asking.ask()
        await asking.ask(key="again")

    repaired, clean = asking_after(story, priced("first")).calls()

    assert repaired["metadata"]["repairs"] == REPAIRS
    assert "repairs" not in clean["metadata"]


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        ("full", '{"error": "no, alice@example.org"}'),
        ("redacted", '{"error": "no, [email]"}'),
        ("none", None),
    ],
)
def test_the_raw_reply_of_a_failed_call_is_kept_as_payloads_are(
    mode: PayloadMode, kept: str | None
) -> None:
    """The journal keeps the start of the raw reply, and a replay fails with the same message."""

    async def story(asking: Asking) -> None:
        asking.models._payloads = Payloads(mode)
        body = '{"error": "no, alice@example.org"}'
        asking.provider.script("first", Step(status=400, raw_body=body))
        with pytest.raises(CallFailedError) as failed:
            await asking.ask()
        journal = asking.run.journal
        (entry,) = journal.entries.values()
        assert entry.value is not None
        assert entry.value.get("raw_reply") == kept
        asking.begin(journal)
        with pytest.raises(CallFailedError) as again:
            await asking.ask()
        assert str(again.value) == str(failed.value)

    asking_after(story, replace(priced("first"), fallbacks=()))

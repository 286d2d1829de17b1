"""How models are made to reply with JSON, whatever their endpoint supports."""

import json

import pytest

from caseworker.engine.call import CallFailedError
from caseworker.models.forms import ReplyForm, StatedSchema, StructuredOutput, in_form, is_prose
from caseworker.models.ports import Message, ModelRequest
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import SCHEMA, Asking, asking_after, busy, chain, priced

MODEL = priced("local")
NO_SCHEMA = Step(status=400, text="'response_format.type' must be 'json_object' or 'text'")
NO_JSON_MODE = Step(status=422, text="response_format: extra fields not permitted")
BAD_SCHEMA = Step(status=400, text="Invalid schema for response_format 'reply': no such keyword")
ANSWER = '{"answer": "42"}'
FENCED = f"Here you are:\n```json\n{ANSWER}\n```\nAnything else?"
REPLY = Step(text=ANSWER, tokens_in=3, tokens_out=2)


def formats(asking: Asking) -> list[str | None]:
    """Return the response format that each request asks for."""
    asked = (came.body.get("response_format") for came in asking.provider.arrivals)
    return [found and found["type"] for found in asked]


def test_an_endpoint_that_knows_schemas_is_given_the_schema_alone() -> None:
    """An endpoint that supports schemas gets the schema, and the prompt is not changed."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", REPLY)
        assert (await asking.ask(json_schema=SCHEMA)).text == ANSWER

    asking = asking_after(story, MODEL)

    assert formats(asking) == ["json_schema"]
    assert asking.provider.arrivals[0].body["messages"][0]["content"] == "Plan."


def test_what_an_endpoint_refuses_is_asked_for_in_the_next_simpler_form() -> None:
    """The next form is tried at once; each try is an attempt of one logical call, not a retry."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", NO_SCHEMA, NO_JSON_MODE, Step(text=FENCED))
        assert (await asking.ask(json_schema=SCHEMA)).text == ANSWER

    asking = asking_after(story, MODEL)

    assert formats(asking) == ["json_schema", "json_object", None]
    assert asking.provider.times() == [0, 0, 0]
    assert asking.run.spent()["api_calls"] == 3
    assert asking.run.spent()["llm_calls_small"] == 1
    assert asking.run.graph.snapshot()["aggregates"]["total_retries"] == 0
    assert [(call["status"], call["metadata"]["structured_output"]) for call in asking.calls()] == [
        ("fail", "schema"),
        ("fail", "json"),
        ("success", "text"),
    ]


@pytest.mark.parametrize(
    "steps", [[NO_SCHEMA, REPLY], [NO_SCHEMA, NO_JSON_MODE, Step(text=FENCED)]]
)
def test_in_a_simpler_form_the_prompt_says_what_the_parameter_would(steps: list[Step]) -> None:
    """The schema goes into the only system message; the user message is unchanged."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", *steps)
        await asking.ask(json_schema=SCHEMA)

    system, user = asking_after(story, MODEL).provider.arrivals[-1].body["messages"]

    assert system["content"].startswith("Plan.\n")
    assert json.dumps(SCHEMA, sort_keys=True) in system["content"]
    assert user["content"] == "Why?"


def test_words_around_the_json_are_cut_off_in_every_form() -> None:
    """A model may add text even if the endpoint got the parameter."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", Step(text=FENCED))
        assert (await asking.ask(json_schema=SCHEMA)).text == ANSWER
        asking.provider.script("local", Step(text=FENCED))
        assert (await asking.ask(key="words")).text == FENCED

    assert formats(asking_after(story, MODEL)) == ["json_schema", None]


@pytest.mark.parametrize(
    ("reply", "next_form"),
    [
        ("It is 42.", "json_object"),
        ('{"answer": "4', "json_schema"),
        (ANSWER, "json_schema"),
        ("  ", "json_schema"),
    ],
)
def test_an_endpoint_that_ignores_the_schema_is_told_it_in_words_from_then_on(
    reply: str, next_form: str
) -> None:
    """Prose shows that the schema was ignored, a cut-off reply does not. The reprompt states it."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", Step(text=reply), REPLY)
        await asking.ask(json_schema=SCHEMA)
        await asking.ask(key="reprompt", json_schema=SCHEMA)

    assert formats(asking_after(story, MODEL)) == ["json_schema", next_form]


@pytest.mark.parametrize("reply", ["42", '"yes"', "true", " null "])
def test_a_bare_value_is_no_prose(reply: str) -> None:
    """A schema may describe a value that is not an object."""
    assert not is_prose(reply)
    assert is_prose(f"It is {reply}.")


def test_what_was_learned_of_a_model_is_remembered_for_the_process() -> None:
    """The second call uses the form that works, also for another schema."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", NO_SCHEMA)
        await asking.ask(json_schema=SCHEMA)
        await asking.ask(key="next", json_schema=SCHEMA | {"required": []})
        await asking.ask(key="list", json_schema={"type": "array"})

    asking = asking_after(story, MODEL)

    assert formats(asking) == ["json_schema", "json_object", "json_object", None]


def test_a_schema_that_is_refused_says_nothing_about_the_next_one() -> None:
    """One caller's invalid schema must not change how other calls are made."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", BAD_SCHEMA)
        await asking.ask(json_schema=SCHEMA)
        await asking.ask(key="next", json_schema=SCHEMA)

    assert formats(asking_after(story, MODEL)) == ["json_schema", "json_object", "json_schema"]


@pytest.mark.parametrize("status", [400, 422])
def test_a_request_that_is_refused_for_another_reason_is_not_asked_again(status: int) -> None:
    """The prompt may be too long in every form."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", Step(status=status, text="too many tokens"))
        with pytest.raises(CallFailedError):
            await asking.ask(json_schema=SCHEMA)

    assert formats(asking_after(story, MODEL)) == ["json_schema"]


def test_a_request_without_a_schema_is_never_asked_in_another_form() -> None:
    """A request without a schema has no simpler form."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", NO_SCHEMA)
        with pytest.raises(CallFailedError):
            await asking.ask()

    assert formats(asking_after(story, MODEL)) == [None]


@pytest.mark.parametrize(
    ("configured", "asked"), [("schema", "json_schema"), ("json", "json_object"), ("text", None)]
)
def test_a_configured_form_is_the_only_one(configured: str, asked: str | None) -> None:
    """A form set by the operator is used without trying another one."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", NO_SCHEMA, repeat_last=True)
        with pytest.raises(CallFailedError):
            await asking.ask(json_schema=SCHEMA)

    model = priced("local", structured_output=StructuredOutput(configured))
    assert formats(asking_after(story, model)) == [asked]


def test_a_model_without_the_configured_form_hands_over_to_its_fallback() -> None:
    """The fallback may support the configured form."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", NO_SCHEMA)
        assert (await asking.ask(json_schema=SCHEMA)).model == "other"

    strict = priced("local", structured_output=StructuredOutput.SCHEMA)
    assert asking_after(story, chain(strict, priced("other"))).provider.models() == [
        "local",
        "other",
    ]


def test_each_form_has_its_own_retries() -> None:
    """A transient failure is retried in each form."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", busy(), NO_SCHEMA, busy(), busy(), REPLY)
        await asking.ask(json_schema=SCHEMA)

    asking = asking_after(story, MODEL)

    assert asking.provider.times() == pytest.approx([0, 0.5, 0.5, 1, 2])
    assert asking.run.spent()["api_calls"] == 5


def test_a_reply_without_json_is_left_as_it_is() -> None:
    """The caller decides how to report a reply without JSON."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", Step(text="I would rather not."))
        assert (await asking.ask(json_schema=SCHEMA)).text == "I would rather not."

    asking_after(story, priced("local", structured_output=StructuredOutput.TEXT))


def test_an_anthropic_endpoint_without_tools_is_asked_in_words() -> None:
    """The JSON is then in the reply's text and not in the arguments of a tool."""

    async def story(asking: Asking) -> None:
        asking.provider.script(
            "claude-haiku-4-5",
            Step(status=400, text="tool_choice: not supported"),
            Step(text=FENCED),
        )
        assert (await asking.ask(json_schema=SCHEMA)).text == ANSWER

    asking = asking_after(story, priced("claude-haiku-4-5"), flavour="anthropic")

    assert ["tools" in came.body for came in asking.provider.arrivals] == [True, False]


@pytest.mark.req("002/22.4")
@pytest.mark.parametrize("knows", [True, False])
def test_a_run_that_is_executed_again_begins_where_its_own_record_ends(knows: bool) -> None:
    """The answer is replayed whether or not the new process knows the model's form."""

    async def story(asking: Asking) -> None:
        asking.provider.script("local", NO_SCHEMA, Step(text=ANSWER))
        await asking.ask(key="of another run", json_schema=SCHEMA)
        asking.begin()
        before = await asking.ask(json_schema=SCHEMA)
        if not knows:
            asking.restart()
        asking.begin(asking.run.journal)
        assert await asking.ask(json_schema=SCHEMA) == before

    asking = asking_after(story, MODEL)

    assert len(asking.provider.arrivals) == 3
    assert asking.run.spent() == {}


def test_a_schema_that_the_messages_state_is_not_repeated_in_the_prompt() -> None:
    """A simpler form then asks only for JSON."""
    messages = (Message(role="system", content="Plan."), Message(role="user", content="?"))
    plain = {"type": "object", "properties": {"actions": {"type": "array"}}}

    stated, other = (
        in_form(ModelRequest(messages=messages, json_schema=schema), ReplyForm.TEXT)
        for schema in (StatedSchema(plain), plain)
    )

    assert "actions" not in stated.messages[0].content
    assert "one JSON value" in stated.messages[0].content
    assert "actions" in other.messages[0].content
    assert stated.json_schema is other.json_schema is None

"""How real model providers ask for JSON, over real sockets, with the provider's own record."""

import json
from typing import Any

import pytest

from caseworker.models.ports import ModelFault
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.openai import openai_provider
from caseworker_cases.agent.prompt import CaseTools
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.data_fetch_stock import DataFetchStock
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.tools.respond import Respond
from tests.support.fake_provider import DEFAULT_PLAN, FakeProvider, Step
from tests.support.model_line import FLAVOURS, KEY, Flavour, Line

OPEN_SCHEMA = {
    "type": "object",
    "properties": {"actions": {"type": "array", "items": {"type": "object"}}},
    "required": ["actions"],
}
CLOSED_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(("schema", "strict"), [(CLOSED_SCHEMA, True), (OPEN_SCHEMA, False)])
async def test_openai_is_given_the_schema_and_held_to_it_where_that_is_possible(
    fake: FakeProvider, schema: dict[str, Any], strict: bool
) -> None:
    """Strict mode would close an open object, so its schema is sent as advice."""
    provider = openai_provider(base_url=fake.openai_url)
    line = Line(fake, provider, FLAVOURS[0])

    await line.ask(json_schema=schema)
    await provider.aclose()

    asked = (await line.request_body())["response_format"]["json_schema"]
    assert asked["strict"] is strict
    assert asked["schema"]["required"] == schema["required"]
    assert ("additionalProperties" in json.dumps(asked["schema"])) is strict


async def test_the_schema_of_plans_reaches_a_strict_endpoint_as_it_is(fake: FakeProvider) -> None:
    """The schema has a branch for each function of the built-in tools and fits strict mode."""
    prices = PackagedPrices()
    tools = [Calculator(), Calendar(), DataFetchStock(prices), NumericAnalysis(prices), Respond()]
    offer = CaseTools(tool.spec for tool in tools)
    provider = openai_provider(base_url=fake.openai_url)
    line = Line(fake, provider, FLAVOURS[0])

    await line.ask(json_schema=offer.schema)
    await provider.aclose()

    asked = (await line.request_body())["response_format"]["json_schema"]
    branches = asked["schema"]["properties"]["actions"]["items"]["anyOf"]
    assert asked["strict"] is True
    assert [one["properties"]["tool"]["enum"] for one in branches] == [
        [name] for name in (*offer.offered, "cannot")
    ]
    expected = offer.schema["properties"]["actions"]["items"]["anyOf"]
    assert [one["properties"] for one in branches] == [one["properties"] for one in expected]


async def test_anthropic_gives_the_document_as_the_arguments_of_a_tool(
    fake: FakeProvider,
) -> None:
    """The tool is forced, its schema is ours, and its arguments become the text of the reply."""
    provider = anthropic_provider(base_url=fake.url, api_key=KEY)
    line = Line(fake, provider, FLAVOURS[1])

    reply = await line.ask(json_schema=OPEN_SCHEMA)
    await provider.aclose()

    assert json.loads(reply.text) == DEFAULT_PLAN
    sent = await line.request_body()
    assert sent["tools"][0]["input_schema"] == OPEN_SCHEMA
    assert sent["tool_choice"]["type"] in ("any", "tool")


async def test_openai_is_asked_for_any_json_object_in_json_mode(fake: FakeProvider) -> None:
    """The request sets only the parameter; the prompt describes the fields of the object."""
    provider = openai_provider(base_url=fake.openai_url)
    line = Line(fake, provider, FLAVOURS[0])

    await line.ask(json_object=True)
    await provider.aclose()

    sent = await line.request_body()
    assert sent["response_format"] == {"type": "json_object"}
    assert sent["messages"][0]["content"] == "Plan."


async def test_a_model_of_an_unknown_name_is_given_the_schema_too(fake: FakeProvider) -> None:
    """Only a request shows whether its server supports schemas."""
    provider = openai_provider(base_url=fake.openai_url)
    line = Line(fake, provider, Flavour("openai", lambda _: provider, "house-model-7b"))

    await line.ask(json_schema=CLOSED_SCHEMA)
    await provider.aclose()

    assert (await line.request_body())["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("response_format is not supported; tool_choice neither", ModelFault.FORM_UNSUPPORTED),
        ("Invalid schema for tools or response_format", ModelFault.SCHEMA_REFUSED),
        ("the prompt is too long", ModelFault.REFUSED),
    ],
)
async def test_a_refusal_tells_whether_it_is_about_the_way_json_was_asked_for(
    line: Line, status: int, said: str, fault: ModelFault
) -> None:
    """The fault depends on the parameter that the message names, and on how JSON was requested."""
    error = await line.fail(Step(status=status, text=said), json_schema=CLOSED_SCHEMA)

    assert (error.fault, error.retryable, error.status) == (fault, False, status)
    assert said in str(error)


async def test_a_refusal_of_plain_text_is_never_about_json(line: Line) -> None:
    """The content of the refusal makes no difference."""
    error = await line.fail(Step(status=400, text="response_format is not supported"))

    assert error.fault is ModelFault.REFUSED

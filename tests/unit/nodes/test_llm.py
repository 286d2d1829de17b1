"""Steps that call a model."""

import json
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.engine.call import CallFailedError
from caseworker.nodes.node_type import RunFacts
from caseworker.nodes.reply_schema import UnfitReplyError
from caseworker.nodes.templates import MissingValueError
from tests.unit.cases.agent.world import ScriptedModel, provider_down
from tests.unit.nodes.world import NOW, NodeRun, flow, graph, step

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


def asking(**data: Any) -> dict[str, Any]:
    return graph(step("ask", "llm", {"prompt": "Where is ${default.name}?", **data}))


def node_run(*replies: Any, **settings: Any) -> NodeRun:
    return NodeRun(small=ScriptedModel(list(replies)), **settings)


async def test_a_prompt_gets_its_values_and_the_answer_leaves_on_default() -> None:
    """The step uses the small model unless it names the big one."""
    here = node_run("In Berlin.")

    answer = await here.value(
        asking(system="Be ${mood}."), "ask", default={"name": "Ada"}, mood="kind"
    )

    assert answer == "In Berlin."
    (asked,) = here.small.requests
    assert [(m.role, m.content) for m in asked.messages] == [
        ("system", "Be kind."),
        ("user", "Where is Ada?"),
    ]
    assert asked.json_schema is None
    assert here.scope.usage.to_dict()["llm_calls_small"] == 1


async def test_the_big_model_answers_where_it_is_named() -> None:
    """The step's tier selects the model."""
    here = NodeRun(big=ScriptedModel(["In Rome."]))

    assert await here.value(asking(tier="big"), "ask", default={"name": "Ada"}) == "In Rome."
    assert here.scope.usage.to_dict()["llm_calls_big"] == 1


async def test_the_seed_is_the_steps_or_else_the_runs() -> None:
    """The provider gets the step's seed, or else the run's."""
    here = node_run("a", "b", facts=RunFacts(now=NOW, seed=7))

    await here.run(asking(), default={"name": "x"})
    await here.run(asking(seed=8), default={"name": "x"})

    assert [request.seed for request in here.small.requests] == [7, 8]


async def test_an_answer_with_a_schema_is_json() -> None:
    """The next step can use paths into the answer; the provider gets the schema."""
    here = node_run('{"city": "Berlin", "people": 3}', "ok")
    of = graph(
        step("ask", "llm", {"prompt": "Where?", "output_schema": SCHEMA}),
        step("then", "llm", {"prompt": "${default.city} has ${default.people}."}),
        flow("ask", "then"),
    )

    outcome = await here.run(of)

    assert outcome.steps["ask"].outputs == {"default": {"city": "Berlin", "people": 3}}
    assert here.small.requests[0].json_schema == SCHEMA
    assert here.small.requests[1].messages[-1].content == "Berlin has 3."


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        ("Berlin", "is not JSON alone"),
        ('```json\n{"city": "Berlin"\n```', "is not JSON alone"),
        ('{"city": NaN}', "is not JSON alone"),
        ('{"city": 1e999}', "is not JSON alone"),
        ('{"city": "\\u0000"}', "contains a NUL character or an unpaired surrogate"),
        ('{"city": "\\ud800"}', "contains a NUL character or an unpaired surrogate"),
        ("[" * 90 + "]" * 90, "nested too deeply"),
        ("[" * 90_000, "is not JSON alone"),
        ('{"people": 2.5}', "type at people"),
        ('{"people": 1}', "required at the whole"),
        ('{"city": "x", "sk4f9a8b": 1}', "additionalProperties at the whole"),
    ],
)
async def test_an_unfit_answer_is_asked_for_once_more(unfit: str, why: str) -> None:
    """The second request names the problem without repeating the answer."""
    here = node_run(unfit, '{"city": "Rome"}')

    assert await here.value(asking(output_schema=SCHEMA), "ask", default={"name": "x"}) == {
        "city": "Rome"
    }
    said, complaint = here.small.requests[1].messages[-2:]
    assert (said.role, said.content) == ("assistant", unfit)
    assert why in complaint.content
    assert "sk4f9a8b" not in complaint.content
    assert json.dumps(SCHEMA, separators=(",", ":")) in complaint.content
    assert here.scope.usage.to_dict()["llm_calls_small"] == 2


async def test_a_second_unfit_answer_fails_the_step() -> None:
    """The step's policy applies, and no third request is sent."""
    here = node_run("Berlin", '{"people": 1}', "never asked")

    error = await here.failure(asking(output_schema=SCHEMA), default={"name": "x"})

    assert isinstance(error, UnfitReplyError)
    assert str(error) == "The reply does not follow its JSON Schema: required at the whole."
    assert len(here.small.requests) == 2


async def test_a_limit_on_calls_holds_for_the_second_question_too() -> None:
    """A stop is not a failure, so no policy applies to it."""
    here = node_run("Berlin", budget=Budget(max_llm_calls_small=1))
    of = asking(output_schema=SCHEMA)
    of["steps"][0]["policy"] = {"on_error": "skip"}

    outcome = await here.run(of, default={"name": "x"})

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "llm_calls_small"


async def test_both_questions_have_keys_of_their_own_and_are_replayed() -> None:
    """After a worker is lost, neither request is sent again."""
    here = node_run("Berlin", '{"city": "Rome"}')
    of = asking(output_schema=SCHEMA)
    await here.run(of, default={"name": "x"})

    here.journal.reopen()
    answer = await here.value(of, "ask", default={"name": "x"})

    assert answer == {"city": "Rome"}
    assert len(here.small.requests) == 2


async def test_a_place_without_a_value_fails_the_step_before_anything_is_asked() -> None:
    """The error names the missing value, and no model is called."""
    here = node_run()

    error = await here.failure(asking(), default={})

    assert isinstance(error, MissingValueError)
    assert (str(error), here.small.requests) == ("There is no value at default.name.", [])


async def test_a_provider_that_fails_fails_the_step() -> None:
    """The step's policy may supply another value instead."""
    here = node_run(provider_down())
    assert isinstance(await here.failure(asking(), default={"name": "x"}), CallFailedError)

    other = node_run(provider_down())
    of = asking()
    of["steps"][0]["policy"] = {"on_error": "skip", "fallback_value": "Nowhere."}
    outcome = await other.run(of, default={"name": "x"})
    assert outcome.steps["ask"].outputs == {"default": "Nowhere."}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"type": "string", "pattern": "(a)\\1"},
        {"type": "string", "pattern": "("},
        [],
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_when_the_graph_is_checked(schema: Any) -> None:
    """References are not fetched, and patterns with exponential run time are rejected."""
    assert node_run().places(asking(output_schema=schema)) == ["steps.0.data.output_schema"]

"""A graph from outside cannot run code, reach a Python object, or grow without limit."""

from typing import Any

import pytest

from tests.unit.cases.agent.world import ScriptedModel
from tests.unit.nodes.world import NodeRun, flow, function, graph, step

CODE = [
    "{default.__class__.__mro__}",
    "{0.__class__}",
    "%(default)s %s",
    "{{ 7 * 7 }} {{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}",
    "<%= system('id') %> #{7*7} `id` $(id) $default $$",
    "__import__('os').system('id')",
    "f'{7*7}' eval(1+1)",
]


@pytest.mark.parametrize("text", CODE)
async def test_what_looks_like_code_stays_text(text: str) -> None:
    """Prompts, arguments and values are never evaluated."""
    of = graph(
        step("ask", "llm", {"prompt": f"{text} ${{default}}"}),
        step("say", "tool", {"tool": "echo", "args": {"say": text}}),
        step("again", "tool", {"tool": "echo", "args": {"say": "${default}"}}),
    )
    here = NodeRun(small=ScriptedModel(["ok"]))

    outcome = await here.run(of, default=text)

    assert here.small.requests[0].messages[-1].content == f"{text} {text}"
    assert outcome.steps["say"].outputs["default"]["said"] == text
    assert outcome.steps["again"].outputs["default"]["said"] == text


@pytest.mark.parametrize(
    "place",
    [
        "default!r",
        "default:>9999999999",
        "default[0]",
        "default['a']",
        "default()",
        "7*7",
        " default",
        "__import__('os')",
        "default|upper",
        "${default}",
    ],
)
def test_what_is_no_path_is_no_place(place: str) -> None:
    """Formats, calls, indexes and filters are rejected when the graph is validated."""
    text = f"${{{place}}}"
    of = graph(
        step("ask", "llm", {"prompt": text}),
        step("say", "tool", {"tool": "echo", "args": {"say": text}}),
        step("go", "router", {"routes": [{"when": {"path": place, "op": "exists"}, "to": "x"}]}),
    )

    assert {found.split(".")[1] for found in NodeRun().places(of)} == {"0", "1", "2"}


@pytest.mark.parametrize(
    "path",
    [
        "default.__class__",
        "default.__class__.__mro__.1",
        "default.__dict__",
        "default.items",
        "default.get",
        "__class__",
        "__builtins__",
    ],
)
async def test_a_path_reaches_no_attribute(path: str) -> None:
    """A path reads only keys, never Python attributes of the same name."""
    error = await NodeRun().failure(
        graph(step("ask", "llm", {"prompt": f"${{{path}}}"})), default={"a": 1}
    )
    missing = {"path": path, "op": "missing"}
    routed = await NodeRun().run(
        graph(step("r", "router", {"routes": [{"when": missing, "to": "gone"}]})),
        default={"a": 1},
    )

    assert str(error) == f"There is no value at {path}."
    assert routed.steps["r"].outputs == {"gone": {"a": 1}}


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "eval",
        "__import__",
        "twice.__globals__",
        "caseworker.cli:main",
        "Twice",
        "twice ",
    ],
)
def test_only_registered_functions_can_be_named(name: str) -> None:
    """Functions are found by exact name only; no name is imported."""

    @function("twice")
    def twice(context: Any) -> Any:
        raise AssertionError("nobody may call this")

    here = NodeRun(functions=[twice])

    assert here.places(graph(step("f", "function", {"name": name}))) == ["steps.0.data.name"]


def test_a_type_is_a_name_and_no_import() -> None:
    """Unknown types are rejected wherever a type can be named."""
    here = NodeRun()
    for kind in ("python", "caseworker.nodes.function.FunctionNode", "LLM", "__init__"):
        fallback = {"on_error": "fallback", "fallback": {"type": kind, "data": {}}}
        of = graph(
            step("a", kind),
            step("b", "llm", {"prompt": "x"}, policy=fallback),
            step("c", "map", {"step": {"type": kind, "data": {}}}),
        )
        assert sorted(here.places(of)) == [
            "steps.0.type",
            "steps.1.policy.fallback.type",
            "steps.2.data.step.type",
        ]


async def test_a_value_that_looks_like_a_template_is_never_expanded() -> None:
    """Neither the step that gets the value nor a later step expands it."""
    of = graph(
        step("a", "tool", {"tool": "echo", "args": {"say": "${default}"}}),
        step("b", "tool", {"tool": "echo", "args": {"say": "${default.said}"}}),
        step("c", "llm", {"prompt": "${default.said}"}),
        flow("a", "b"),
        flow("b", "c"),
    )
    here = NodeRun(small=ScriptedModel(["ok"]))

    await here.run(of, default="${secret} $${secret}", secret="s3cret")

    assert here.small.requests[0].messages[-1].content == "${secret} $${secret}"


async def test_a_chain_of_doubling_steps_ends_with_a_failure() -> None:
    """The run fails before the process runs out of memory."""
    doubling = {"tool": "echo", "args": {"say": "${default.said}${default.said}"}}
    steps = [step("s0", "tool", {"tool": "echo", "args": {"say": "x" * 1000}})]
    steps += [step(f"s{n}", "tool", doubling) for n in range(1, 30)]
    of = graph(*steps, *(flow(f"s{n}", f"s{n + 1}") for n in range(29)))

    error = await NodeRun().failure(of)

    assert "more than 1,048,576 characters" in str(error)


def test_json_of_any_depth_is_refused_and_breaks_nothing() -> None:
    """The depth limit also applies where any JSON is accepted."""
    deep: Any = 1
    for _ in range(3000):
        deep = {"not": deep, "graph": {"steps": [deep], "edges": []}} if _ < 3 else [deep]
    here = NodeRun()
    for data in ({"name": "x", "args": deep}, {"graph": deep}, {"routes": deep}, {"step": deep}):
        for kind in ("function", "subgraph", "router", "map"):
            assert here.places(graph(step("a", kind, data)))

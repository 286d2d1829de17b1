"""Tools, functions and providers, built in or added by other packages."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import SecretStr

from caseworker.engine.context import ExecutionContext
from caseworker.main import agents, plugins
from caseworker.main.agents import build_catalog, build_models, build_tools
from caseworker.main.configuration import StartupError
from caseworker.main.entry_points import installed_commands
from caseworker.main.plugins import (
    Providers,
    Toolbox,
    installed_agents,
    installed_functions,
)
from caseworker.models.ports import ModelEndpoint, ModelReply, ModelRequest
from caseworker.nodes.function import FunctionNode
from caseworker.nodes.router import router_type
from caseworker.settings.schema import Settings
from caseworker.settings.tools import PriceSettings, ToolSettings
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from caseworker.tools.resources import ToolResources
from caseworker_cases.stocks.price_tool import price_source

HERE = "tests.unit.main.test_plugins"

ready_made = FunctionNode("its own name", lambda context: None, persistent=True)
no_function = 7


def plain(context: ExecutionContext) -> Any:
    return context.input


async def coroutine(context: ExecutionContext) -> Any:
    return context.input


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="caseworker.any")


def test_functions_are_found_by_name_and_plain_ones_get_a_thread() -> None:
    """A plain function runs in a thread, because it may block; a ready node is used unchanged."""
    found = installed_functions(
        [
            point("z", f"{HERE}:ready_made"),
            point("plain", f"{HERE}:plain"),
            point("coroutine", f"{HERE}:coroutine"),
        ]
    )

    assert [(node.id, node.blocking) for node in found] == [
        ("coroutine", False),
        ("its own name", False),
        ("plain", True),
    ]
    assert found[1] is ready_made


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f"{HERE}:absent", "'x' .* cannot be loaded: AttributeError"),
        ("no.such.module:f", "'x' .* cannot be loaded: ModuleNotFoundError"),
        ("app.tools.ports:f", "'x' .* cannot be loaded: .* package app was renamed to caseworker"),
        (f"{HERE}:no_function", "'x' .* is not callable"),
    ],
)
def test_one_that_is_broken_stops_the_start(value: str, said: str) -> None:
    """A broken plugin stops the start with a message."""
    with pytest.raises(StartupError, match=said):
        installed_functions([point("x", value)])


def test_code_agents_are_installed_or_configured() -> None:
    """A configured one has the name of its function; a duplicate name stops the start."""
    found = installed_agents([f"{HERE}:plain"], [point("other", f"{HERE}:coroutine")])

    assert {name: node.blocking for name, node in found.items()} == {"plain": True, "other": False}
    with pytest.raises(StartupError, match=r"Two code agents have the name 'plain'"):
        installed_agents([f"{HERE}:plain"], [point("plain", f"{HERE}:coroutine")])
    with pytest.raises(StartupError, match=r"agent 'no_function' .* is not callable"):
        installed_agents([f"{HERE}:no_function"], [])


BUILT_IN = (
    *("calculator", "calendar", "data_fetch_stock", "numeric_analysis", "plotter", "respond"),
)


class Weather:
    """A tool of another package."""

    spec = ToolSpec(name="weather", description="Says rain.", parameters={"type": "object"})

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return {"value": "rain"}


ready_tool = Weather()


@pytest.mark.parametrize("name", ["Weather", "ready_tool", "make_weather"])
def test_a_tool_is_added_by_its_dotted_name(name: str) -> None:
    """A tool is configured by the dotted name of an object, a class or a factory."""
    tools = Toolbox(ToolSettings(plugins=(f"{HERE}:{name}",))).tools

    assert [each.spec.name for each in tools] == sorted([*BUILT_IN, "weather"])


def make_weather() -> Weather:
    return Weather()


class Market(Weather):
    """A tool that uses shared resources."""

    def __init__(self, resources: ToolResources, unit: str = "USD") -> None:
        self.prices = resources.shared(price_source)
        self.again = resources.shared(price_source)


def test_a_factory_that_requires_it_gets_what_tools_share() -> None:
    """A factory with a resources parameter gets them; other parameters keep their defaults."""
    (tool,) = Toolbox(ToolSettings(), [point("weather", f"{HERE}:Market")]).tools

    assert isinstance(tool, Market)
    assert not tool.prices.external
    assert tool.again is tool.prices


def test_the_tools_of_the_service_come_by_the_same_door() -> None:
    """Built-in tools are loaded like plugins, and all but the plotter are deterministic."""
    specs = [tool.spec for tool in Toolbox(ToolSettings()).tools]

    assert tuple(spec.name for spec in specs) == BUILT_IN
    assert [spec.name for spec in specs if not spec.deterministic] == ["plotter"]


async def test_what_a_live_source_says_is_not_worked_out_again() -> None:
    """Tools with a live price source are not deterministic, because prices change."""
    toolbox = Toolbox(ToolSettings(prices=PriceSettings(api_key=SecretStr("key"))))
    await toolbox.aclose()

    names = [tool.spec.name for tool in toolbox.tools if not tool.spec.deterministic]
    assert names == ["data_fetch_stock", "numeric_analysis", "plotter"]


@pytest.mark.parametrize(
    ("kind", "value", "use"),
    [
        ("tool", "Weather", lambda points: Toolbox(ToolSettings(), points)),
        ("function", "ready_made", installed_functions),
        ("provider", "Echo", Providers),
    ],
)
def test_two_of_one_name_stop_the_start(
    kind: str, value: str, use: Callable[[list[EntryPoint]], object]
) -> None:
    """The error for a duplicate name lists both definitions."""
    points = [point("echo", f"{HERE}:{value}") for _ in range(2)]
    with pytest.raises(
        StartupError, match=rf"Two {kind}s have the name .*: {HERE}:\w+ and {HERE}:"
    ):
        use(points)


class Echo:
    """A provider of another package."""

    name = "echo"
    external = False

    def __init__(self, endpoint: ModelEndpoint) -> None:
        if endpoint.base_url is None:
            raise ValueError("it needs a base_url")

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        return ModelReply(text=request.messages[-1].content, model=model, usage=None)

    async def aclose(self) -> None: ...


def test_a_provider_is_made_of_what_is_configured() -> None:
    """A provider gets its configured endpoint; one that cannot use it stops the start."""
    providers = Providers([point("echo", f"{HERE}:Echo"), point("none", f"{HERE}:Weather")])

    provider = providers.make("echo", ModelEndpoint(model="m", base_url="http://models.test"))
    assert provider.name == "echo"
    with pytest.raises(StartupError, match="cannot be created: ValueError: it needs a"):
        providers.make("echo", ModelEndpoint(model="m"))
    with pytest.raises(StartupError, match="'none' must have name, external, complete"):
        providers.make("none", ModelEndpoint(model="m"))


@pytest.mark.parametrize(
    ("models", "key"),
    [
        ({"big": {"provider": "opnai", "model": "m"}}, "models.big.provider"),
        (
            {"big": {"fallbacks": [{"provider": "opnai", "model": "m"}]}},
            "models.big.fallbacks.1.provider",
        ),
        ({"named": {"n": {"provider": "opnai", "model": "m"}}}, "models.named.n.provider"),
    ],
)
def test_a_provider_that_nobody_has_registered_stops_the_start(
    models: dict[str, Any], key: str
) -> None:
    """The error names the key, a similar provider and the available ones."""
    with pytest.raises(StartupError) as refused:
        build_models(Settings.model_validate({"models": models}))

    assert str(refused.value) == (
        f"{key}: unknown provider 'opnai'. Did you mean 'openai'? Available: anthropic, offline, "
        "openai, recorded, stub"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f"{HERE}:absent", "cannot be loaded: AttributeError"),
        (f"{HERE}:no_function", "must have spec and run"),
        (f"{HERE}:plain", "must have spec and run.*: decorate a function with @caseworker.tool"),
    ],
)
def test_a_tool_that_is_none_stops_the_start(value: str, said: str) -> None:
    """An invalid tool stops the start with its configured name."""
    with pytest.raises(StartupError, match=f"tool .*{said}"):
        Toolbox(ToolSettings(plugins=(value,)), ())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (ToolSettings(deny=("Plotter",)), "tools.deny: unknown tool 'Plotter'. Did you mean"),
        (ToolSettings(allow=("hammer",)), "tools.allow: unknown tool 'hammer'. Available:"),
    ],
)
def test_a_tool_that_does_not_exist_is_neither_allowed_nor_denied(
    settings: ToolSettings, line: str
) -> None:
    """An unknown tool in allow or deny stops the start; a typo in deny would allow the tool."""
    with pytest.raises(StartupError) as refused:
        build_tools(Settings(tools=settings), Toolbox(settings).tools)

    assert str(refused.value).startswith(line)
    assert "plotter" in str(refused.value)


def greeting(with_client: object) -> Callable[[], None]:
    def greet() -> None: ...

    greet.__doc__ = f"Greet through {with_client}."
    return greet


def test_a_broken_command_fails_when_it_is_called_and_disables_no_other() -> None:
    """A package with an error must not prevent `caseworker serve` or `caseworker cancel`."""
    commands = installed_commands(
        [
            point("greet", f"{HERE}:greeting"),
            point("absent", "no.such.module:f"),
            point("direct", f"{HERE}:make_weather"),
            point("twice", f"{HERE}:greeting"),
            point("twice", f"{HERE}:greeting"),
        ],
    )

    assert commands["greet"]("the client").__doc__ == "Greet through the client."
    for name, message in (
        ("absent", "'absent' .* cannot be loaded: ModuleNotFoundError"),
        ("direct", "'direct' .* must be a function that returns a command"),
        ("twice", "Two commands have the name 'twice'"),
    ):
        with pytest.raises(StartupError, match=message):
            commands[name]("the client")()


def test_a_node_type_with_the_name_of_a_built_in_one_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one line that contains the name."""
    monkeypatch.setattr(agents, "installed_node_types", lambda _: (router_type(),))
    settings = Settings()
    toolbox = Toolbox(settings.tools)
    tools = build_tools(settings, toolbox.tools)

    with pytest.raises(StartupError, match="'router'"):
        build_catalog(settings, build_models(settings), tools, toolbox)


def test_an_installed_node_type_must_be_one() -> None:
    """A factory that returns anything else stops the start."""
    parts: Any = None
    (found,) = plugins.installed_node_types(parts, [point("x", f"{HERE}:router_type")])

    assert found.name == "router"
    with pytest.raises(StartupError, match="is not a NodeType"):
        plugins.installed_node_types(parts, [point("x", f"{HERE}:make_weather")])

"""The examples of docs/extending.md work unchanged."""

import re
import tomllib
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import cast

import pytest

from caseworker.engine.context import ExecutionContext
from caseworker.main.plugins import Providers, Toolbox, installed_functions, installed_node_types
from caseworker.models.ports import Message, ModelEndpoint, ModelError, ModelRequest
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.parts import NodeParts
from caseworker.settings.tools import ToolSettings
from caseworker.tools.ports import ToolContext
from caseworker_cases.agent.plan import Plan, parse_plan
from tests.unit.nodes.world import NodeRun

GUIDE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
CONTEXT = ToolContext(run_id="r", timezone="UTC", now=datetime(2025, 1, 1, tzinfo=UTC))


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[EntryPoint]]:
    """Return the guide's entry points by group, from a package with its examples."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (package / "extras.py").write_text("\n".join(examples))
    monkeypatch.syspath_prepend(str(tmp_path))
    (toml,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    groups = tomllib.loads(toml)["project"]["entry-points"]
    return {
        group: [EntryPoint(name=name, value=value, group=group) for name, value in named.items()]
        for group, named in groups.items()
    }


async def test_the_tools_run(points: dict[str, list[EntryPoint]]) -> None:
    """The example tools are loaded, return values, and report failures without raising."""
    tool, volume = Toolbox(ToolSettings(), points["caseworker.tools"]).tools

    assert (tool.spec.name, tool.spec.deterministic) == ("shipping_cost", True)
    assert await tool.run({"weight_kg": 3}, CONTEXT) == {"value": 9, "unit": "EUR"}
    assert (await tool.run({"weight_kg": 31}, CONTEXT))["code"] == "too_heavy"
    box = {"width_cm": 20, "height_cm": 10, "depth_cm": 5}
    assert await volume.run(box, CONTEXT) == {"value": 1.0}


async def test_the_function_runs(points: dict[str, list[EntryPoint]]) -> None:
    """The example function gets the input of its step."""
    (node,) = installed_functions(points["caseworker.functions"])

    prices = [{"price": 1.5}, {"price": 2}]
    assert node.id == "total"
    assert await node.execute(ExecutionContext(input={"items": prices})) == 3.5


async def test_the_node_type_executes_a_step(points: dict[str, list[EntryPoint]]) -> None:
    """The example node type has defaults and rejects unknown fields."""
    (kind,) = installed_node_types(cast("NodeParts", None), points["caseworker.node_types"])
    catalog = NodeCatalog([kind])
    step = {"id": "a", "type": "price", "data": {"amount": "default.total", "currency": "USD"}}

    world = NodeRun()
    world.catalog = catalog
    outcome = await world.run({"steps": [step], "edges": []}, default={"total": 3})

    assert outcome.steps["a"].outputs == {"default": "3.00 USD"}
    for data in ({"amount": "default", "money": "USD"}, {"amount": "no path"}):
        step["data"] = data
        assert catalog.examine({"steps": [step], "edges": []})[0] is None


async def test_the_provider_replies(points: dict[str, list[EntryPoint]]) -> None:
    """The example provider returns a plan that the case agent can parse."""
    providers = Providers(points["caseworker.providers"])
    provider = providers.make("house", ModelEndpoint(model="any", base_url="http://127.0.0.1:9"))

    asked = ModelRequest(messages=(Message(role="user", content="What is 6 * 7?"),))
    reply = await provider.complete("any", asked)
    await provider.aclose()

    assert isinstance(parse_plan(reply.text), Plan)
    with pytest.raises(ModelError):
        await provider.complete("any", ModelRequest(messages=(Message(role="user", content=""),)))

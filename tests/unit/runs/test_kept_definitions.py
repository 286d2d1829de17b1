"""Parsed graphs are cached for later runs of the same graph."""

from unittest.mock import Mock

import pytest

from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.errors import GraphRefusedError
from tests.support.api import Api
from tests.support.graph_documents import TENANT, containing, flat, graph_ref
from tests.unit.runs.registering import RegisteredDefinitions

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def registered(api: Api) -> RegisteredDefinitions:
    return RegisteredDefinitions(api)


async def test_a_graph_that_names_no_other_is_read_once(
    registered: RegisteredDefinitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph with another order of keys or another value is parsed separately."""
    examine = Mock(side_effect=registered.api.catalog.examine)
    monkeypatch.setattr(NodeCatalog, "examine", examine)
    first, again = await registered.inline(flat("a")), await registered.inline(flat("a"))
    read = examine.call_count
    await registered.inline(dict(reversed(flat("a").items())))
    await registered.inline(flat("b"))

    assert first is again
    assert (read, examine.call_count) == (1, 3)


async def test_a_graph_that_names_others_is_put_together_each_time(
    registered: RegisteredDefinitions,
) -> None:
    """A graph with names is expanded each time, because a definition may have changed."""
    await registered.register("g", flat("old"))
    before = await registered.inline(containing(graph_ref("g")))
    await registered.register("g", flat("new"))
    after = await registered.inline(containing(graph_ref("g")))

    inner = [graph["steps"][0]["data"]["graph"] for graph in (before, after)]
    assert [each["version"] for each in inner] == [1, 2]


async def test_what_is_wrong_with_a_graph_is_told_each_time(
    registered: RegisteredDefinitions,
) -> None:
    """The graph is rejected again with the same problems."""
    graph = {"steps": [{"id": "a"}, {"id": "a"}], "edges": []}

    assert [*await registered.refused(graph)] == [*await registered.refused(graph)] != []


async def test_the_same_text_is_not_the_same_as_a_graph_and_as_an_agent(
    registered: RegisteredDefinitions,
) -> None:
    """The cache distinguishes them, whichever came first."""
    text = {"name": "a", "prompt": {"system": "Answer."}}
    agent = await registered.graphs.inline(TENANT, text, DefinitionKind.AGENT)

    assert agent.graph["steps"][0]["data"] == {"agent": text}
    assert "steps" in [problem.place for problem in await registered.refused(text)]
    with pytest.raises(GraphRefusedError):
        await registered.graphs.inline(TENANT, flat("a"), DefinitionKind.AGENT)

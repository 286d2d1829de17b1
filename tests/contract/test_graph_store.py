"""Contract of the store of registered graphs and agents."""

import asyncio
from typing import Any

import pytest

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.accept.postgres.definitions import PostgresDefinitions
from caseworker.runs.errors import (
    ContainedDefinitionGoneError,
    DefinitionInUseError,
    DefinitionNotFoundError,
    DefinitionsTooLargeError,
    InvalidRunError,
)
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.graph_documents import TENANT, flat, new_graph

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(params=["together", "alone"])
def store(api: Api, request: pytest.FixtureRequest) -> PostgresDefinitions:
    """Return an empty store that looks heads up in batches or one at a time."""
    together = request.param == "together"
    return api.definitions if together else PostgresDefinitions(api._engines)


async def names(store: PostgresDefinitions, **page: Any) -> tuple[list[str], str | None]:
    found = await store.find(TENANT, DefinitionKind.GRAPH, **{"limit": 50, "cursor": None} | page)
    return [head.name for head in found.items], found.next_cursor


async def test_what_is_registered_comes_back_as_it_was(store: PostgresDefinitions) -> None:
    """Every part is preserved, including the order of keys."""
    graph = {"steps": [{"type": "t", "id": "ß 漢", "data": {"b": 1.5, "a": [None, True]}}]}

    added = await store.add(new_graph("g", graph, description="What it is for"))
    found = await store.get(TENANT, DefinitionRef("g"))

    assert found is not None
    assert (found.head, added.created) == (added.head, True)
    assert (found.head.name, found.head.version) == ("g", 1)
    assert found.head.description == "What it is for"
    assert found.head.size_bytes == new_graph("g", graph).size_bytes
    assert found.content == graph
    assert [list(step) for step in found.content["steps"]] == [["type", "id", "data"]]


async def test_every_change_is_a_new_version(store: PostgresDefinitions) -> None:
    """Each version stays unchanged, and the newest one is the default."""
    for step_id in "abc":
        await store.add(new_graph("g", flat(step_id)))

    for version, step_id in enumerate("abc", start=1):
        found = await store.get(TENANT, DefinitionRef("g", version))
        assert found is not None
        assert found.content == flat(step_id)
    newest = await store.get(TENANT, DefinitionRef("g"))
    assert newest is not None
    assert newest.head.version == 3
    assert await store.get(TENANT, DefinitionRef("g", 4)) is None
    assert await store.get(TENANT, DefinitionRef("g", 2**40)) is None
    assert await store.get(TENANT, DefinitionRef("other")) is None


async def test_the_newest_version_again_is_that_version(store: PostgresDefinitions) -> None:
    """Registering an older graph or another description creates a new version."""
    await store.add(new_graph("g", flat("a")))
    again = await store.add(new_graph("g", flat("a")))
    described = await store.add(new_graph("g", flat("a"), description="new"))
    changed = await store.add(new_graph("g", flat("b")))
    back = await store.add(new_graph("g", flat("a")))

    registered = [again, described, changed, back]
    assert [each.created for each in registered] == [False, True, True, True]
    assert [each.head.version for each in registered] == [1, 2, 3, 4]


async def test_registered_at_once_each_gets_a_version_of_its_own(
    store: PostgresDefinitions,
) -> None:
    """Twenty concurrent graphs get consecutive versions, and equal ones share a version."""
    async with asyncio.TaskGroup() as group:
        posts = [group.create_task(store.add(new_graph("g", flat(f"s{n}")))) for n in range(20)]
        same = [group.create_task(store.add(new_graph("h", flat("s")))) for _ in range(20)]

    assert sorted(post.result().head.version for post in posts) == list(range(1, 21))
    assert sum(post.result().created for post in same) == 1
    assert {post.result().head.version for post in same} == {1}


async def test_tenants_do_not_meet(store: PostgresDefinitions) -> None:
    """The same name can exist in each tenant."""
    await store.add(new_graph("g", flat("a")))
    theirs = await store.add(new_graph("g", flat("b"), tenant="b"))

    assert theirs.head.version == 1
    await store.add(new_graph("g", flat("newer"), tenant="b"))
    for tenant, ref, graph in (
        (TENANT, DefinitionRef("g", 1), flat("a")),
        ("b", DefinitionRef("g", 1), flat("b")),
        (TENANT, DefinitionRef("g"), flat("a")),
        ("b", DefinitionRef("g"), flat("newer")),
    ):
        found = await store.get(tenant, ref)
        assert found is not None
        assert found.content == graph
    assert await store.get(TENANT, DefinitionRef("g", 2)) is None
    assert await store.get("c", DefinitionRef("g")) is None
    assert await store.load("c", [DefinitionRef("g")], max_bytes=10_000) == {}
    assert await store.known("c", [DefinitionRef("g")]) == frozenset()
    assert (await store.find("c", DefinitionKind.GRAPH, limit=9, cursor=None)).items == []
    assert (await store.versions("c", DefinitionRef("g"), limit=9, cursor=None)).items == []
    with pytest.raises(DefinitionNotFoundError):
        await store.delete("c", DefinitionRef("g"))
    with pytest.raises(ContainedDefinitionGoneError):
        await store.add(new_graph("h", tenant="c", uses=(DefinitionRef("g"),)))
    await store.delete("b", DefinitionRef("g"))
    assert await store.get(TENANT, DefinitionRef("g")) is not None


async def test_many_are_loaded_at_once(store: PostgresDefinitions) -> None:
    """The result has the existing definitions under the requested names."""
    await store.add(new_graph("g", flat("a")))
    await store.add(new_graph("g", flat("b")))
    wanted = [
        DefinitionRef("g"),
        DefinitionRef("g", 1),
        DefinitionRef("g", 2),
        DefinitionRef("g", 3),
        DefinitionRef("x"),
    ]

    loaded = await store.load(TENANT, wanted, max_bytes=10_000)

    versions = {ref: found.head.version for ref, found in loaded.items()}
    assert versions == {DefinitionRef("g"): 2, DefinitionRef("g", 1): 1, DefinitionRef("g", 2): 2}
    assert loaded[DefinitionRef("g", 1)].content == flat("a")
    assert await store.known(TENANT, wanted) == loaded.keys()


async def test_more_than_can_be_taken_is_not_read(store: PostgresDefinitions) -> None:
    """Each definition counts once, however often it is requested."""
    size = (await store.add(new_graph("g"))).head.size_bytes
    await store.add(new_graph("h"))
    twice = [DefinitionRef("g"), DefinitionRef("g", 1)]

    assert set(await store.load(TENANT, twice, max_bytes=size)) == set(twice)
    with pytest.raises(DefinitionsTooLargeError):
        await store.load(TENANT, [DefinitionRef("g"), DefinitionRef("h")], max_bytes=2 * size - 1)
    with pytest.raises(DefinitionsTooLargeError):
        await store.load(TENANT, [DefinitionRef("g")], max_bytes=-1)


async def test_names_are_listed_in_order_page_by_page(store: PostgresDefinitions) -> None:
    """Each name is listed once with its newest version, capital letters first."""
    for name in ("b", "a-2", "a", "Z", "a.1", "a_3"):
        await store.add(new_graph(name, flat("old")))
        await store.add(new_graph(name, flat("new")))

    seen, cursor = await names(store, limit=4)
    rest, last = await names(store, limit=4, cursor=cursor)
    page = await store.find(TENANT, DefinitionKind.GRAPH, limit=50, cursor=None)

    assert [*seen, *rest] == ["Z", "a", "a-2", "a.1", "a_3", "b"]
    assert (cursor is None, last) == (False, None)
    assert {head.version for head in page.items} == {2}


async def test_versions_are_listed_newest_first_page_by_page(store: PostgresDefinitions) -> None:
    """Each version is listed once, and an exactly full page is the last one."""
    for number in range(6):
        await store.add(new_graph("g", flat(f"s{number}")))
    seen: list[int] = []
    cursor = None
    for _ in range(2):
        page = await store.versions(TENANT, DefinitionRef("g"), limit=3, cursor=cursor)
        seen += [head.version for head in page.items]
        cursor = page.next_cursor

    assert (seen, cursor) == ([6, 5, 4, 3, 2, 1], None)


@pytest.mark.parametrize("cursor", ["nonsense", "e30", "MQ", "ImEi", "", "é", "IlwwIg", "LTE"])
async def test_a_cursor_of_somebody_else_is_refused(
    store: PostgresDefinitions, cursor: str
) -> None:
    """A cursor of another list is refused as well."""
    of_names, of_versions = cursor != "ImEi", cursor != "MQ"
    if of_names:
        with pytest.raises(InvalidRunError):
            await store.find(TENANT, DefinitionKind.GRAPH, limit=5, cursor=cursor)
    if of_versions:
        with pytest.raises(InvalidRunError):
            await store.versions(TENANT, DefinitionRef("g"), limit=5, cursor=cursor)


async def test_a_number_is_never_used_again(store: PostgresDefinitions) -> None:
    """Numbers of deleted versions are never reused."""
    for step_id in "abc":
        await store.add(new_graph("g", flat(step_id)))
    await store.delete(TENANT, DefinitionRef("g", 3))
    newest = await store.get(TENANT, DefinitionRef("g"))
    fourth = await store.add(new_graph("g", flat("c")))
    await store.delete(TENANT, DefinitionRef("g"))
    gone = await store.get(TENANT, DefinitionRef("g")), await names(store)
    fifth = await store.add(new_graph("g", flat("c")))

    assert newest is not None
    assert newest.head.version == 2
    assert (fourth.head.version, gone) == (4, (None, ([], None)))
    assert (fifth.head.version, fifth.created) == (5, True)
    assert await store.get(TENANT, DefinitionRef("g", 1)) is None


async def test_what_is_not_there_cannot_be_deleted(store: PostgresDefinitions) -> None:
    """Deleting an already deleted version is refused as well."""
    await store.add(new_graph("g"))
    await store.delete(TENANT, DefinitionRef("g", 1))

    for ref in (
        DefinitionRef("g"),
        DefinitionRef("g", 1),
        DefinitionRef("g", 2),
        DefinitionRef("x"),
    ):
        with pytest.raises(DefinitionNotFoundError):
            await store.delete(TENANT, ref)


async def test_what_others_contain_is_not_deleted(store: PostgresDefinitions) -> None:
    """The error names the users of the definition; without them it can be deleted."""
    for step_id in "ab":
        await store.add(new_graph("g", flat(step_id)))
    await store.add(new_graph("user", flat("u"), uses=(DefinitionRef("g", 1),)))

    for ref in (DefinitionRef("g", 1), DefinitionRef("g")):
        with pytest.raises(DefinitionInUseError) as refused:
            await store.delete(TENANT, ref)
        assert refused.value.users == (DefinitionRef("user", 1),)
    await store.delete(TENANT, DefinitionRef("g", 2))
    await store.delete(TENANT, DefinitionRef("user"))
    await store.delete(TENANT, DefinitionRef("g"))


async def test_whoever_contains_the_newest_version_keeps_one(store: PostgresDefinitions) -> None:
    """Any version satisfies the reference, so only the last one is kept."""
    for step_id in "ab":
        await store.add(new_graph("g", flat(step_id)))
    await store.add(new_graph("user", flat("u"), uses=(DefinitionRef("g"),)))

    await store.delete(TENANT, DefinitionRef("g", 2))
    for ref in (DefinitionRef("g", 1), DefinitionRef("g")):
        with pytest.raises(DefinitionInUseError):
            await store.delete(TENANT, ref)


async def test_versions_that_contain_one_another_go_together(store: PostgresDefinitions) -> None:
    """Deleting a name deletes all versions, including those that refer to each other."""
    await store.add(new_graph("g", flat("a")))
    await store.add(new_graph("g", flat("b"), uses=(DefinitionRef("g", 1),)))

    with pytest.raises(DefinitionInUseError):
        await store.delete(TENANT, DefinitionRef("g", 1))
    await store.delete(TENANT, DefinitionRef("g"))

    assert await names(store) == ([], None)


async def test_a_graph_whose_content_is_gone_is_not_stored(store: PostgresDefinitions) -> None:
    """The content may be deleted while the graph is checked."""
    await store.add(new_graph("g"))

    for ref in (DefinitionRef("g", 2), DefinitionRef("x")):
        with pytest.raises(ContainedDefinitionGoneError):
            await store.add(new_graph("user", uses=(DefinitionRef("g"), ref)))
    assert await names(store) == (["g"], None)


AGENT = DefinitionKind.AGENT
PROMPT: dict[str, Any] = {"name": "g", "prompt": {}}


@pytest.mark.req("003/FR4.1")
async def test_a_graph_and_an_agent_of_one_name_have_nothing_to_do_with_one_another(
    store: PostgresDefinitions,
) -> None:
    """Versions, lists and deletions are separate for each kind."""
    await store.add(new_graph("g", flat("a")))
    await store.add(new_graph("g", flat("b")))
    added = await store.add(new_graph("g", PROMPT, kind=AGENT))
    graph, agent = DefinitionRef("g"), DefinitionRef("g", kind=AGENT)

    loaded = await store.load(TENANT, [graph, agent], max_bytes=10_000)
    found = [await store.get(TENANT, ref) for ref in (graph, agent)]
    listed = await store.find(TENANT, AGENT, limit=9, cursor=None)
    versions = await store.versions(TENANT, agent, limit=9, cursor=None)
    await store.delete(TENANT, agent)

    assert added.head.ref == DefinitionRef("g", 1, AGENT)
    assert {ref: each.content for ref, each in loaded.items()} == {graph: flat("b"), agent: PROMPT}
    assert [each and each.content for each in found] == [flat("b"), PROMPT]
    assert listed.items == versions.items == [added.head]
    assert await store.known(TENANT, [graph, agent]) == {graph}
    assert (await store.find(TENANT, AGENT, limit=9, cursor=None)).items == []


@pytest.mark.req("003/FR4.1")
async def test_what_contains_an_agent_keeps_it_whatever_its_own_kind(
    store: PostgresDefinitions,
) -> None:
    """A graph with the name of the agent does not count as a user."""
    agent = DefinitionRef("g", kind=AGENT)
    await store.add(new_graph("g"))
    await store.add(new_graph("g", PROMPT, kind=AGENT))
    await store.add(new_graph("flow", uses=(agent,)))
    await store.add(new_graph("chief", {"name": "chief"}, kind=AGENT, uses=(agent,)))

    with pytest.raises(DefinitionInUseError) as refused:
        await store.delete(TENANT, agent)
    await store.delete(TENANT, DefinitionRef("g"))

    assert refused.value.users == (
        DefinitionRef("chief", 1, AGENT),
        DefinitionRef("flow", 1),
    )
    with pytest.raises(ContainedDefinitionGoneError):
        await store.add(new_graph("other", uses=(DefinitionRef("g"),)))

"""Agents defined in files: parsing, ordering, registration and error messages."""

from pathlib import Path

import pytest

from caseworker.main.agent_folder import read_agents, register_agents, with_code_agents
from caseworker.main.configuration import StartupError
from caseworker.nodes.function import FunctionNode
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.accept.definitions import Definitions
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.graph_documents import TENANT
from tests.support.limits import graph_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELPER = "name: helper\nprompt: {system: Help.}\n"
CHIEF = "name: chief\nprompt: {}\ntools: [{agent: {name: helper}}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two agents, the first of which calls the second, and a file that is ignored."""
    (tmp_path / "a.yaml").write_text(CHIEF)
    (tmp_path / "b.yml").write_text(HELPER)
    (tmp_path / "notes.txt").write_text("name: chief")
    return tmp_path


@pytest.fixture
def registry(api: Api) -> Definitions:
    return Definitions(api.definitions, api.catalog, graph_limits(), PacedThread())


@pytest.mark.req("003/FR1.2", "003/FR4.1")
async def test_the_agents_of_a_folder_are_registered_in_the_order_they_need(
    folder: Path, registry: Definitions
) -> None:
    """Dependencies are registered first; only a changed agent gets a new version."""
    await register_agents(read_agents(folder), registry, TENANT)
    await register_agents(read_agents(folder), registry, TENANT)
    (folder / "b.yml").write_text(HELPER.replace("Help.", "Help more."))
    await register_agents(read_agents(folder), registry, TENANT)

    refs = [DefinitionRef(name, kind=DefinitionKind.AGENT) for name in ("chief", "helper")]
    chief, helper = [await registry.get(TENANT, ref) for ref in refs]
    assert (chief.head.version, helper.head.version) == (1, 2)
    assert helper.content == {"name": "helper", "prompt": {"system": "Help more."}}


@pytest.mark.req("003/FR1.1")
@pytest.mark.parametrize("prompt", ["Help.", "'Help ${topic}.'", "|\n  Help.\n  Now."])
async def test_a_file_may_give_the_prompt_as_a_text(
    folder: Path, registry: Definitions, prompt: str
) -> None:
    """A scalar of YAML is the system message, also over several lines."""
    (folder / "b.yml").write_text(
        f"name: helper\ninputs: {{topic: {{type: string, required: false}}}}\nprompt: {prompt}\n"
    )
    await register_agents(read_agents(folder), registry, TENANT)

    ref = DefinitionRef("helper", kind=DefinitionKind.AGENT)
    assert (await registry.get(TENANT, ref)).content["prompt"].startswith("Help")


@pytest.mark.req("003/FR1.2", "003/FR4.2")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HELPER, r"c\.yaml: name: b\.yml defines an agent named 'helper' as well"),
        ("name: x\n", r"c\.yaml: prompt: "),
        ("name: x\nprompt: {system: '${topic}'}\n", r"c\.yaml: prompt\.system: .*'topic'"),
        ("name: x\nprompt: For ${topic}.\n", r"c\.yaml: prompt: .*'topic'"),
        ("name: x\nprompt: [a]\n", r"c\.yaml: prompt: This must be the text"),
        ("name: x\nprompts: {}\nprompt: {}\n", r"c\.yaml: prompts: "),
        ("- 1\n", r"c\.yaml: the agent: "),
        ("name: x\nname: y\n", r"c\.yaml cannot be read: duplicate key 'name'"),
        ("name: &a x\ndescription: *a\n", r"c\.yaml cannot be read: .*aliases"),
        (
            "name: x\nprompt: {}\ninputs: {a: {type: object, default: 2026-01-01}}\n",
            r"c\.yaml: contains values that JSON does not support",
        ),
        ("name: [\n", r"c\.yaml cannot be read"),
        (
            "name: x\nprompt: {}\ntools: [{agent: {name: x}}]\n",
            r"c\.yaml: tools: circular reference: x -> x",
        ),
    ],
)
async def test_a_wrong_file_stops_the_start_with_one_line(
    folder: Path, text: str, said: str
) -> None:
    """The error message names the file, the field and the problem in one line."""
    (folder / "c.yaml").write_text(text)

    with pytest.raises(StartupError, match=f"agents\\.folder: {said}") as refused:
        read_agents(folder)

    assert "\n" not in str(refused.value)


async def test_what_only_the_service_can_find_wrong_stops_the_start_too(
    tmp_path: Path, registry: Definitions
) -> None:
    """A reference to an agent that is neither in a file nor registered stops the start."""
    (tmp_path / "a.yaml").write_text(CHIEF)

    with pytest.raises(
        StartupError, match=r"a\.yaml: tools\.0\.agent\.name: No agent has this name"
    ):
        await register_agents(read_agents(tmp_path), registry, TENANT)


async def test_a_code_agent_is_registered_before_the_files_that_use_it(
    folder: Path, registry: Definitions
) -> None:
    """A file must not define an agent with its name; its own name must suit an agent."""
    code = {"researcher": FunctionNode("researcher", lambda _: None)}
    found = with_code_agents(read_agents(folder), code)
    unfit = with_code_agents([], {"no name": code["researcher"]})

    assert [each.name for each in found] == ["researcher", "helper", "chief"]
    with pytest.raises(StartupError, match=r"b\.yml: name: a code agent is named 'helper'"):
        with_code_agents(read_agents(folder), {"helper": code["researcher"]})
    with pytest.raises(StartupError, match=r"caseworker\.agents: no name: name: An agent name has"):
        await register_agents(unfit, registry, TENANT)


async def test_no_folder_has_no_agents(tmp_path: Path) -> None:
    """No folder or an empty one yields no agents; a folder that does not exist is an error."""
    assert read_agents(None) == ()
    assert read_agents(tmp_path) == []
    with pytest.raises(StartupError, match="does not exist"):
        read_agents(tmp_path / "nowhere")

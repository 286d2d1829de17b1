"""Resources of ``/mcp`` for the SDK's own client: traces and files of runs."""

import base64
import re
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    BlobResourceContents,
    ResourceLink,
    TextResourceContents,
)

from caseworker.faces.mcp_server import resources
from caseworker.features.artifacts.storage import NewArtifact, SaveOutcome
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.run import RunKey, RunStatus
from tests.contract.mcp_service import NOW, McpService
from tests.support.api import Api
from tests.support.artifacts import LIMITS, new_artifact
from tests.support.limits import api_limits
from tests.support.mcp_servers import GENERATIONS
from tests.support.stores import end_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("cw/16.mcp")]

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2000
FILES = (
    new_artifact("plot.png", PNG),
    new_artifact("table.csv", "a,b\nü,2\n".encode(), media_type="text/csv"),
    new_artifact("broken.txt", b"\xff\xfe", media_type="text/plain"),
)


@pytest.fixture
def mcp_service(api: Api) -> McpService:
    return McpService(api.app(), api)


async def run_with(client: Client, service: McpService, *files: NewArtifact) -> str:
    """Call a tool and let a worker end its run, which has made the files; return its ID."""
    view = (await client.call_tool("run_case", NOW)).structured_content
    assert view is not None
    run_id: str = view["run_id"]
    run = await service.api.store.claim(RunKey("a", run_id), "worker")
    assert run is not None
    for file in files:
        saved = await service.api.files.save(run.key, run.fence, file, LIMITS)
        assert saved is SaveOutcome.STORED
    await service.api.journal.finish(end_of(run, RunStatus.COMPLETED))
    return run_id


async def links_of(client: Client, run_id: str) -> list[ResourceLink]:
    result = await client.call_tool("get_run", {"run_id": run_id})
    return [each for each in result.content if isinstance(each, ResourceLink)]


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_a_result_links_to_the_trace_and_the_files_of_its_run(
    mcp_service: McpService, mode: str
) -> None:
    """The links are readable, and the structured result is the run as before."""
    key = await mcp_service.key()
    async with mcp_service.mcp(key, mode) as client, mcp_service.http(key) as http:
        run_id = await run_with(client, mcp_service, *FILES)
        result = await client.call_tool("get_run", {"run_id": run_id})
        trace, plot, table, broken = await links_of(client, run_id)
        run = (await http.get(f"/runs/{run_id}")).json()
        text = (await http.get(f"/runs/{run_id}/trace", params={"format": "explain"})).text
        contents = [
            (await client.read_resource(link.uri)).contents[0]
            for link in (trace, plot, table, broken)
        ]

    assert result.structured_content == run
    assert (plot.name, plot.mime_type, plot.size) == ("plot.png", "image/png", len(PNG))
    assert table.uri == f"caseworker://runs/{run_id}/artifacts/table.csv"
    explained, picture, rows, wrong = contents
    assert isinstance(explained, TextResourceContents)
    elapsed = re.compile(r"\d[\d.,]* m?s\b")  # the run has not ended
    assert elapsed.sub("", explained.text) == elapsed.sub("", text)
    assert explained.mime_type == "text/plain"
    assert isinstance(picture, BlobResourceContents)
    assert (base64.b64decode(picture.blob), picture.mime_type) == (PNG, "image/png")
    assert isinstance(rows, TextResourceContents)
    assert (rows.text, rows.mime_type, rows.uri) == ("a,b\nü,2\n", "text/csv", table.uri)
    assert isinstance(wrong, BlobResourceContents)
    assert base64.b64decode(wrong.blob) == b"\xff\xfe"


async def test_clients_of_protocols_without_links_get_none(mcp_service: McpService) -> None:
    """A version before 2025-06-18 has no block of this type."""
    headers = await mcp_service.key()
    blocks: dict[str, list[bool]] = {}
    async with mcp_service.http(headers) as http:
        for version in ("2025-03-26", "2025-06-18"):
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "run_case", "arguments": NOW},
            }
            accepts = {
                "Accept": "application/json, text/event-stream",
                "mcp-protocol-version": version,
            }
            answer = await http.post("/mcp", json=call, headers=accepts)
            blocks[version] = ["resource_link" in answer.text, '"isError":false' in answer.text]

    assert blocks == {"2025-03-26": [False, True], "2025-06-18": [True, True]}


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_the_newest_traces_are_listed_and_templates_describe_all_resources(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The list is one page, because a client may follow cursors to the end."""
    monkeypatch.setattr(resources, "MAX_LISTED", 2)
    key, others = await mcp_service.key(), await mcp_service.key("b")
    async with mcp_service.mcp(key, mode) as client, mcp_service.mcp(others, mode) as other:
        run_ids = [await run_with(client, mcp_service) for _ in range(3)]
        listed = await client.list_resources()
        templates = (await client.list_resource_templates()).resource_templates
        capabilities = client.server_capabilities
        unlisted = (await other.list_resources()).resources

    expected = [f"caseworker://runs/{run_id}/trace" for run_id in (run_ids[2], run_ids[1])]
    assert ([each.uri for each in listed.resources], listed.next_cursor) == (expected, None)
    assert [each.uri_template for each in templates] == [
        "caseworker://runs/{run_id}/trace",
        "caseworker://runs/{run_id}/artifacts/{name}",
    ]
    assert capabilities is not None
    assert capabilities.resources is not None
    assert unlisted == []


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("caseworker://runs/no-such-run/trace", "No run has this ID"),
        ("caseworker://runs/no-such-run/artifacts/a.png", "No run has this ID"),
        ("caseworker://runs/{run_id}/artifacts/no-such.png", "no artifact with this name"),
        ("caseworker://runs/{run_id}/graph", "The resource does not exist."),
        ("caseworker://runs/{run_id}/artifacts/../trace", "The resource does not exist."),
        ("file:///etc/passwd", "The resource does not exist."),
        ("caseworker://runs/%00/trace", "The resource does not exist."),
    ],
)
@pytest.mark.parametrize("mode", GENERATIONS)
async def test_a_resource_that_does_not_exist_is_an_error_with_its_uri(
    mcp_service: McpService, mode: str, uri: str, message: str
) -> None:
    """The message names the missing part."""
    async with mcp_service.mcp(await mcp_service.key(), mode) as client:
        uri = uri.format(run_id=await run_with(client, mcp_service))
        error = await refusal_of(client, uri)

    assert (error.code, error.data) == (INVALID_PARAMS, {"uri": uri})
    assert message in error.message


async def refusal_of(client: Client, uri: str) -> Any:
    """Read a resource that cannot be read; return the error."""
    with pytest.raises(MCPError) as refused:
        await client.read_resource(uri)
    return refused.value.error


async def test_resources_of_another_tenant_do_not_exist(mcp_service: McpService) -> None:
    """The answers are the same as for a run that does not exist."""
    key, others = await mcp_service.key(), await mcp_service.key("b")
    async with mcp_service.mcp(key) as client, mcp_service.mcp(others) as other:
        run_id = await run_with(client, mcp_service, *FILES)
        for link in await links_of(client, run_id):
            foreign = await refusal_of(other, link.uri)
            unknown = await refusal_of(other, link.uri.replace(run_id, "no-such-run"))
            assert (foreign.code, foreign.message) == (unknown.code, unknown.message)


async def test_a_file_that_is_too_large_for_a_message_is_refused_with_its_url(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file can be downloaded from that URL."""
    monkeypatch.setattr(resources, "MAX_ARTIFACT_BYTES", len(PNG) - 1)
    key = await mcp_service.key()
    async with mcp_service.mcp(key) as client, mcp_service.http(key) as http:
        run_id = await run_with(client, mcp_service, *FILES)
        _, plot, *_ = await links_of(client, run_id)
        refused = await refusal_of(client, plot.uri)
        _, url = refused.message.split("GET ")
        assert (await http.get(url)).content == PNG

    assert f"{len(PNG)} bytes" in refused.message


async def test_files_in_messages_count_in_the_memory_of_the_process(api: Api) -> None:
    """Beyond the limit, the client can read the file later; the memory is released."""
    limits = api_limits(max_bodies_bytes=resources.COPIES * len(PNG))
    service = McpService(api.app(limits=limits), api)
    async with service.mcp(await service.key()) as client:
        run_id = await run_with(client, service, *FILES)
        _, plot, table, _ = await links_of(client, run_id)
        refused = await refusal_of(client, plot.uri)
        for _ in range(3):
            assert (await client.read_resource(table.uri)).contents

    assert (refused.code, refused.data) == (INTERNAL_ERROR, {"uri": plot.uri})


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RuntimeError("the secret reason"),
            INTERNAL_ERROR,
            "Internal error. Retry the call later.",
        ),
        (StoreUnavailableError("the secret reason"), INTERNAL_ERROR, "database"),
    ],
)
async def test_a_read_that_breaks_the_service_hides_the_reason(
    mcp_service: McpService,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    message: str,
) -> None:
    """The reason appears only in the log."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(resources, "explanation", broken)
    async with mcp_service.mcp(await mcp_service.key()) as client:
        run_id = await run_with(client, mcp_service)
        refused = await refusal_of(client, f"caseworker://runs/{run_id}/trace")

    assert refused.code == code
    assert message in refused.message
    assert "secret" not in refused.message

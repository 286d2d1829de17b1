"""The files of runs over HTTP: list them, get one (spec, section 10)."""

import hashlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from caseworker_client import ApiError, AsyncCaseworkerClient

from caseworker.features.artifacts.postgres import PIECE_BYTES, PostgresArtifacts
from caseworker.platform.caller import Caller, KeyScope, with_implied
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.run import Run
from tests.support.api import Api
from tests.support.artifacts import new_artifact, run_with_files
from tests.support.asgi_calls import streamed
from tests.support.drawing_tool import SVG
from tests.support.stores import end_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3000
HERE = "/runs/case-1/artifacts"


Spoil = Callable[[int, Exception | None], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Return a function after which only the first bytes of a file can be read."""
    whole = PostgresArtifacts.read

    def apply(readable: int, then: Exception | None) -> None:
        async def read(*args: Any, offset: int, size: int) -> bytes | None:
            if offset < readable:
                return await whole(*args, offset=offset, size=size)
            if then is not None:
                raise then
            return None

        monkeypatch.setattr(PostgresArtifacts, "read", read)

    return apply


@pytest_asyncio.fixture(loop_scope="module")
async def run(api: Api) -> Run:
    """Return a run that has made two files."""
    picture = new_artifact("b.svg", SVG, media_type="image/svg+xml")
    return await run_with_files(api.store, api.files, new_artifact("plot-1.png", PNG), picture)


@pytest_asyncio.fixture(loop_scope="module")
async def client(run: Run, client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Return a client of the service that has the run."""
    return client


def problem_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, str(answer.json()["type"]).rpartition(":")[2]


@pytest.mark.req("002/9.4")
async def test_the_files_of_a_run_are_listed_with_their_urls(client: httpx.AsyncClient) -> None:
    """Files are listed oldest first with all their metadata."""
    answer = await client.get(HERE)

    assert answer.status_code == 200
    assert answer.json()["run_id"] == "case-1"
    assert (await client.get("/runs/case-1")).json()["links"]["artifacts"] == HERE
    plot, svg = answer.json()["artifacts"]
    assert plot == {
        "name": "plot-1.png",
        "media_type": "image/png",
        "size_bytes": len(PNG),
        "sha256": hashlib.sha256(PNG).hexdigest(),
        "created_at": plot["created_at"],
        "url": f"{HERE}/plot-1.png",
    }
    assert svg["name"] == "b.svg"
    assert (await client.get(plot["url"])).content == PNG


@pytest.mark.req("002/9.4")
async def test_a_picture_is_shown_with_its_name_and_its_tag(client: httpx.AsyncClient) -> None:
    """A browser must revalidate its copy before using it."""
    answer = await client.get(f"{HERE}/plot-1.png")

    headers = answer.headers
    assert (answer.status_code, answer.content) == (200, PNG)
    assert headers["content-type"] == "image/png"
    assert headers["content-length"] == str(len(PNG))
    assert headers["content-disposition"] == 'inline; filename="plot-1.png"'
    assert headers["etag"] == f'"{hashlib.sha256(PNG).hexdigest()}"'
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert headers.get_list("cache-control") == ["private, no-cache"]
    assert headers["x-request-id"]


async def test_nothing_in_a_svg_is_run_by_a_browser(client: httpx.AsyncClient) -> None:
    """The file is sent as a download, and its policy allows no scripts, origin or network."""
    answer = await client.get(f"{HERE}/b.svg")

    policy = [part.strip() for part in answer.headers["content-security-policy"].split(";")]
    assert answer.content == SVG
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-disposition"] == 'attachment; filename="b.svg"'
    assert policy == ["sandbox", "default-src 'none'", "style-src 'unsafe-inline'"]


@pytest.mark.parametrize(
    ("media_type", "content_type"),
    [
        ("application/json", "application/json"),
        ("text/csv", "text/csv; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("text/html", "application/octet-stream"),
        ("application/javascript", "application/octet-stream"),
        ("image/png\r\nset-cookie: a=b", "application/octet-stream"),
        ("IMAGE/PNG", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
async def test_a_file_is_only_what_it_may_be_and_saved_unless_it_is_a_picture(
    client: httpx.AsyncClient, api: Api, media_type: str, content_type: str
) -> None:
    """A file with HTML in it must not be shown as a page of this service."""
    await run_with_files(
        api.store,
        api.files,
        new_artifact("a.bin", b"<script>", media_type=media_type),
        run_id="other",
    )
    answer = await client.get("/runs/other/artifacts/a.bin")

    assert answer.headers["content-type"] == content_type
    assert answer.headers["content-disposition"] == 'attachment; filename="a.bin"'
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("known", ["{tag}", "W/{tag}", '"other", {tag}', "*"])
async def test_a_file_that_the_caller_has_is_not_sent_again(
    client: httpx.AsyncClient, known: str
) -> None:
    """The answer is 304 for every valid form of ``If-None-Match``."""
    tag = f'"{hashlib.sha256(PNG).hexdigest()}"'
    answer = await client.get(
        f"{HERE}/plot-1.png", headers={"if-none-match": known.format(tag=tag)}
    )

    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == tag
    assert answer.headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize("known", ['"other"', "", "abc"])
async def test_a_file_that_the_caller_has_not_is_sent(
    client: httpx.AsyncClient, known: str
) -> None:
    """Other tags in the header make no difference."""
    answer = await client.get(f"{HERE}/plot-1.png", headers={"if-none-match": known})

    assert (answer.status_code, answer.content) == (200, PNG)


async def test_head_says_what_get_would(client: httpx.AsyncClient) -> None:
    """HEAD returns the headers of GET without a body, also for a missing file."""
    got, head = await client.get(f"{HERE}/plot-1.png"), await client.head(f"{HERE}/plot-1.png")

    ours = {"x-request-id"}
    assert (head.status_code, head.content) == (200, b"")
    assert {k: v for k, v in head.headers.items() if k not in ours} == {
        k: v for k, v in got.headers.items() if k not in ours
    }
    assert (await client.head(f"{HERE}/none.png")).status_code == 404
    assert (await client.put(f"{HERE}/plot-1.png")).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("path", "status", "slug"),
    [
        ("/runs/nobody/artifacts", 404, "run-not-found"),
        ("/runs/nobody/artifacts/a.png", 404, "run-not-found"),
        (f"{HERE}/a.png", 404, "artifact-not-found"),
        (f"{HERE}/A.png", 422, "invalid-request"),
        (f"{HERE}/{'a' * 101}", 422, "invalid-request"),
        (f"{HERE}/.png", 422, "invalid-request"),
        (f"{HERE}/a%0a", 422, "invalid-request"),
        (f"{HERE}/a%22", 422, "invalid-request"),
        (f"{HERE}/..%2F..%2Fetc", 404, "route-not-found"),
        (f"{HERE}/", 404, "route-not-found"),
    ],
)
async def test_what_is_not_there_is_a_problem_document(
    client: httpx.AsyncClient, path: str, status: int, slug: str
) -> None:
    """The problem document says whether the run or the file is missing."""
    assert problem_of(await client.get(path)) == (status, slug)


async def test_a_wish_to_stop_a_run_that_does_not_exist_has_no_files(
    client: httpx.AsyncClient,
) -> None:
    """A pending cancel request is not a run."""
    await client.delete("/runs/later")

    assert problem_of(await client.get("/runs/later/artifacts")) == (404, "run-not-found")


async def test_files_stay_after_the_end_of_their_run(
    api: Api, run: Run, client: httpx.AsyncClient
) -> None:
    """Files exist as long as their run."""
    await api.journal.finish(end_of(run))

    assert (await client.get("/runs/case-1")).json()["status"] == "completed"
    assert len((await client.get(HERE)).json()["artifacts"]) == 2
    assert (await client.get(f"{HERE}/plot-1.png")).content == PNG


async def test_the_files_of_a_tenant_are_there_for_no_other(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither their names nor the run are visible to another tenant."""
    monkeypatch.setattr(
        "caseworker.platform.http.request.anonymous_caller",
        lambda *_: Caller("other", "test", with_implied([KeyScope.RUN])),
    )

    for path in (HERE, f"{HERE}/plot-1.png", f"{HERE}/none.png"):
        assert problem_of(await client.get(path)) == (404, "run-not-found")


async def test_below_a_prefix_the_urls_have_it(run: Run, api: Api) -> None:
    """URLs keep the path prefix under which a proxy serves the service."""
    app = api.app()
    transport = httpx.ASGITransport(app, root_path="/cases")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        listed = (await client.get(f"/cases{HERE}")).json()["artifacts"]

        assert listed[0]["url"] == f"/cases{HERE}/plot-1.png"
        assert (await client.get(listed[0]["url"])).content == PNG


async def test_an_empty_file_is_a_file(client: httpx.AsyncClient, api: Api) -> None:
    """An empty file has no bytes and can be fetched."""
    await run_with_files(api.store, api.files, new_artifact("a.png", b""), run_id="other")
    answer = await client.get("/runs/other/artifacts/a.png")

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == "0"


@pytest.mark.parametrize(
    ("then", "status", "slug"),
    [
        (None, 404, "artifact-not-found"),
        (StoreUnavailableError(), 503, "store-unavailable"),
    ],
)
async def test_a_file_that_cannot_be_read_is_a_problem_before_it_is_an_answer(
    client: httpx.AsyncClient, then: Exception | None, status: int, slug: str, spoil: Spoil
) -> None:
    """The first piece is read before the answer starts."""
    spoil(0, then)
    answer = await client.get(f"{HERE}/plot-1.png")

    assert problem_of(answer) == (status, slug)


@pytest.mark.parametrize("then", [None, StoreUnavailableError()])
async def test_a_file_that_changes_while_it_is_sent_is_cut_off(
    run: Run, then: Exception | None, api: Api, spoil: Spoil
) -> None:
    """The declared length shows that bytes are missing, so no client mixes two versions."""
    spoil(PIECE_BYTES, then)
    with pytest.raises(RuntimeError, match="response already started"):
        async with streamed(api.app(), f"{HERE}/plot-1.png") as call:
            await call.ended()

    assert call.status == 200
    assert call.body == PNG[:PIECE_BYTES]
    assert int(call.headers["content-length"]) == len(PNG)


async def test_the_client_lists_and_fetches_files(run: Run, api: Api) -> None:
    """The client fetches files by the names that the run lists."""
    transport = httpx.ASGITransport(api.app())
    async with AsyncCaseworkerClient("http://localhost", transport=transport) as client:
        listed = await client.list_artifacts("case-1")

        assert [each.name for each in listed] == ["plot-1.png", "b.svg"]
        assert await client.get_artifact("case-1", "plot-1.png") == PNG
        with pytest.raises(ApiError, match="lists its artifacts"):
            await client.get_artifact("case-1", "none.png")
        with pytest.raises(ApiError, match="Check the path"):
            await client.get_artifact("case-1", "../../../tools")

"""GET /runs: filters and refused requests (spec, section 10)."""

import httpx
import pytest

from tests.support.graph_requests import problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_runs_are_listed_by_status_and_time(client: httpx.AsyncClient) -> None:
    """The boundaries themselves are excluded."""
    for run_id in ("a", "b", "c"):
        await client.post("/runs", json={"run_id": run_id, "input": "2+2?"})
    await client.delete("/runs/b")
    middle = (await client.get("/runs/b")).json()["created_at"]

    async def listed(**query: str) -> list[str]:
        page = (await client.get("/runs", params=query)).json()
        return [run["run_id"] for run in page["runs"]]

    assert await listed(status="cancelled") == ["b"]
    assert await listed(status="queued") == ["c", "a"]
    assert await listed(created_after=middle) == ["c"]
    assert await listed(created_before=middle) == ["a"]


async def test_runs_are_listed_by_kind_and_metadata(client: httpx.AsyncClient) -> None:
    """Keys may contain dots, and all filters must match."""
    about = {"a": {"ticket": 7, "x.y": "z"}, "b": {"ticket": "7"}, "c": {}}
    for run_id, metadata in about.items():
        body = {"run_id": run_id, "input": "2+2?", "metadata": metadata}
        await client.post("/runs", json=body)

    async def listed(query: str) -> list[str]:
        page = (await client.get(f"/runs?{query}")).json()
        return [run["run_id"] for run in page["runs"]]

    assert await listed("kind=case") == ["c", "b", "a"]
    assert await listed("kind=agent") == await listed("agent=helper") == []
    assert await listed("metadata.ticket=7") == ["b", "a"]
    assert await listed("metadata.ticket=7&metadata.x.y=z&limit=5") == ["a"]


SECRETS = {
    "address": "ada.king.countess.of.lovelace.and.her.engine@mail.analytical.example.org",
    "key": "sk-proj-" + "a1B2c3D4e5" * 12,
    "token": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0" * 6 + "." + "dBjftJeZ4CVPmB92" * 3,
    "card": "4111 1111 1111 1111",
    "password": "postgresql://service:" + "Hunter2Hunter2" * 4 + "@db.example.org/cases",
}
SHOWN_CHARS = (10, 18, 30, 60)


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
async def test_the_list_shows_no_part_of_a_secret_at_the_cut(
    client: httpx.AsyncClient, secret: str
) -> None:
    """An input is cut to 200 characters, which may end anywhere in a secret that it contains."""
    for shown in SHOWN_CHARS:
        text = "x" * (199 - shown) + f" {secret} " + "and more " * 60
        body = {"run_id": f"cut-{shown}", "input": text}
        assert (await client.post("/runs", json=body)).status_code == 202

    listed = {run["run_id"]: run["input"] for run in (await client.get("/runs")).json()["runs"]}

    pieces = {secret[at : at + 10] for at in range(len(secret) - 9)}
    assert len(listed) == len(SHOWN_CHARS)
    assert {name: [each for each in pieces if each in text] for name, text in listed.items()} == {
        name: [] for name in listed
    }


@pytest.mark.parametrize("query", ["metadata.=1", "metadata.a=%00", "metadata.%00=1"])
async def test_metadata_that_no_run_can_have_are_refused(
    client: httpx.AsyncClient, query: str
) -> None:
    """Metadata have names, and neither names nor values contain NUL characters."""
    answer = await client.get(f"/runs?{query}")

    assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == ["metadata"]


@pytest.mark.parametrize(
    "query",
    [
        "status=done",
        "kind=chat",
        "agent=%00",
        "metadata=1",
        "created_after=yesterday",
        "created_after=2025-01-01",
        "created_before=2025-01-01T00:00:00+00:00",
        "colour=red",
        "status=%FF",
    ],
)
async def test_a_bad_query_is_refused_by_name(client: httpx.AsyncClient, query: str) -> None:
    """The answer is 422 for an unknown parameter; a misspelt filter would list every run."""
    answer = await client.get(f"/runs?{query}")

    assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == [query.partition("=")[0]]

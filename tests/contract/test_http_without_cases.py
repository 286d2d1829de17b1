"""A service whose package of cases is not installed."""

import pytest

from tests.support.api import Api, client_of
from tests.support.graph_requests import fields


async def test_a_case_is_rejected_with_the_package_to_install(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body without a kind is a case; graphs and agents do not need the package."""
    monkeypatch.setattr("caseworker.main.agents.installed_node_types", lambda _: ())
    api = Api(database_url)
    async with api.opened(), client_of(api.app()) as client:
        case = await client.post("/runs", json={"input": "What is 6 * 7?"})
        types = (await client.get("/node-types")).json()["node_types"]
        step = {"id": "a", "type": "case", "data": {}}
        graph = await client.post("/runs", json={"kind": "graph", "graph": {"steps": [step]}})

    assert (case.status_code, fields(case)) == (422, ["kind"])
    assert case.json()["errors"][0]["message"] == "Runs of kind case need caseworker[cases]."
    assert "case" not in [each["name"] for each in types]
    assert graph.status_code == 422

"""Requests of published OpenAPI documents, as a server on this machine receives them.

The documents are in ``tests/data/openapi``; its README names their sources. The expected requests
were written by hand from the OpenAPI Specification (3.0.4 and 3.1.1, "Style Examples" and
Appendix C), RFC 6570, RFC 7578 and the documents.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from caseworker.main.plugins import Toolbox
from caseworker.settings.tools import ToolSettings
from caseworker.testing import run_tool
from caseworker.tools.openapi import operation_of
from caseworker.tools.ports import Tool
from tests.unit.tools.http_support import Api, parts_in

DOCUMENTS = Path("tests/data/openapi")
COLORS = {
    "primitive": "blue",
    "array": ["light blue", "black", "50%"],
    "object": {"name": "R", "description": "1,0"},
}
PNG = "data:image/png;base64,iVBORw0KGgo="
UUID = "0191a5e8-5f53-7b72-8d2e-1b0f2d3c4a5b"
TEXT = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An operation with its arguments, and the request that the specification asks for."""

    document: str
    operation: str
    args: dict[str, Any]
    line: str
    """Method and target."""
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    """A text, a JSON value, or the parts of a multipart body; None is an empty body."""


def styled(operation: str, line: str, *names: str, **headers: str) -> Sent:
    """Return a request whose arguments are colors."""
    args = {name: COLORS[name] for name in names or COLORS}
    return Sent(
        document="readme-parameters-style",
        operation=operation,
        args=args,
        line=line,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def part(
    name: str, content: str, kind: str | None = None, file: str | None = None
) -> tuple[Any, ...]:
    """Return a part of a multipart body."""
    return (name, file, kind, content.encode())


LIST, OBJECT = "light%20blue,black,50%25", "name,R,description,1%2C0"
STYLES = [
    styled(
        "cookies_standard",
        "GET /cookies",
        cookie="primitive=blue; array=light%20blue; array=black; array=50%25;"
        " name=R; description=1%2C0",
    ),
    styled(
        "cookies_form_nonExploded",
        "GET /cookies",
        cookie=f"primitive=blue; array={LIST}; object={OBJECT}",
    ),
    styled(
        "cookies_form_exploded",
        "GET /cookies",
        "array",
        cookie="array=light%20blue; array=black; array=50%25",
    ),
    styled(
        "headers_standard",
        "GET /anything/headers",
        primitive="blue",
        array="light blue,black,50%",
        object="name,R,description,1,0",
    ),
    styled(
        "headers_simple_nonExploded",
        "GET /anything/headers/simple",
        "array",
        array="light blue,black,50%",
    ),
    styled(
        "headers_simple_exploded",
        "POST /anything/headers/simple",
        "object",
        object="name=R,description=1,0",
    ),
    styled("paths_standard", f"GET /anything/path/blue/{LIST}/{OBJECT}"),
    styled(
        "paths_matrix_nonExploded",
        f"GET /anything/path/matrix/;primitive=blue/;array={LIST}/;object={OBJECT}",
    ),
    styled(
        "paths_matrix_exploded",
        "POST /anything/path/matrix/;primitive=blue/;array=light%20blue;array=black;array=50%25/"
        ";name=R;description=1%2C0",
    ),
    styled("paths_label_nonExploded", f"GET /anything/path/label/.blue/.{LIST}/.{OBJECT}"),
    styled(
        "paths_label_exploded",
        "POST /anything/path/label/.blue/.light%20blue.black.50%25/.name=R.description=1%2C0",
    ),
    styled("paths_simple_nonExploded", f"GET /anything/path/simple/blue/{LIST}/{OBJECT}"),
    styled(
        "paths_simple_exploded",
        f"POST /anything/path/simple/blue/{LIST}/name=R,description=1%2C0",
    ),
    styled(
        "query_standard",
        "GET /anything/query?primitive=blue&array=light%20blue&array=black&array=50%25"
        "&name=R&description=1%2C0",
    ),
    styled(
        "query_form_nonExploded",
        f"GET /anything/query/form?primitive=blue&array={LIST}&object={OBJECT}",
    ),
    styled(
        "query_form_exploded",
        "POST /anything/query/form?name=R&description=1%2C0",
        "object",
    ),
    styled(
        "query_spaceDelimited_nonExploded",
        "GET /anything/query/spaceDelimited?array=light%20blue%20black%2050%25"
        "&object=name%20R%20description%201%2C0",
        "array",
        "object",
    ),
    styled(
        "query_pipeDelimited_nonExploded",
        "GET /anything/query/pipeDelimited?array=light%20blue%7Cblack%7C50%25"
        "&object=name%7CR%7Cdescription%7C1%2C0",
        "array",
        "object",
    ),
    styled(
        "query_deepObject_nonExploded",
        "GET /anything/query/deepObject?object%5Bname%5D=R&object%5Bdescription%5D=1%2C0",
        "object",
    ),
]
PETSTORE = [
    Sent(
        document="readme-petstore",
        operation="updatePet",
        args={"name": "Rex", "photoUrls": [], "category": {"id": 2, "name": "dogs"}},
        line="PUT /pet",
        headers={"content-type": "application/json"},
        body={"name": "Rex", "photoUrls": [], "category": {"id": 2, "name": "dogs"}},
    ),
    Sent(
        document="readme-petstore",
        operation="findPetsByStatus",
        args={"status": ["available", "sold"]},
        line="GET /pet/findByStatus?status=available&status=sold",
    ),
    Sent(
        document="readme-petstore",
        operation="findPetsByTags",
        args={"tags": ["a&b", "ö"]},
        line="GET /pet/findByTags?tags=a%26b&tags=%C3%B6",
    ),
    Sent(
        document="readme-petstore",
        operation="updatePetWithForm",
        args={"petId": 7, "name": "Rex & Co", "status": "sold"},
        line="POST /pet/7",
        headers={"content-type": "application/x-www-form-urlencoded"},
        body="name=Rex+%26+Co&status=sold",
    ),
    Sent(
        document="readme-petstore",
        operation="deletePet",
        args={"petId": 7, "api_key": "special"},
        line="DELETE /pet/7",
        headers={"api_key": "special"},
    ),
    Sent(
        document="readme-petstore",
        operation="uploadFile",
        args={"petId": 7, "body": PNG},
        line="POST /pet/7/uploadImage",
        headers={"content-type": "application/octet-stream"},
        body=b"\x89PNG\r\n\x1a\n",
    ),
    Sent(
        document="readme-petstore",
        operation="createUsersWithListInput",
        args={"body": [{"username": "ann"}, {"username": "bob", "id": 2}]},
        line="POST /user/createWithList",
        headers={"content-type": "application/json"},
        body=[{"username": "ann"}, {"username": "bob", "id": 2}],
    ),
]
RCLONE = [
    Sent(
        document="rclone",
        operation="rcNoop",
        args={"params": {"a": "1", "b c": True}, "_async": False},
        line="POST /rc/noop?a=1&b%20c=true&_async=false",
    ),
    Sent(
        document="rclone",
        operation="operationsDelete",
        args={"fs": "drive:a/b", "_filter": '{"MaxAge":"1d"}', "Prefer": "respond-async"},
        line="POST /operations/delete?fs=drive%3Aa%2Fb&_filter=%7B%22MaxAge%22%3A%221d%22%7D",
        headers={"prefer": "respond-async"},
    ),
    Sent(
        document="rclone",
        operation="operationsPubliclink",
        args={"fs_body": "drive:", "remote_body": "x", "unlink_body": True},
        line="POST /operations/publiclink",
        headers={"content-type": "application/json"},
        body={"fs": "drive:", "remote": "x", "unlink": True},
    ),
    Sent(
        document="rclone",
        operation="coreCommand",
        args={"command": "ls", "arg": ["drive:", "--fast list"]},
        line="POST /core/command?command=ls&arg=drive%3A&arg=--fast%20list",
    ),
    Sent(
        document="rclone",
        operation="configCreate",
        args={"name_body": "d", "type_body": "drive", "_async": True},
        line="POST /config/create?_async=true",
        headers={"content-type": "application/json"},
        body={"name": "d", "type": "drive"},
    ),
]
DIALOGPORTEN = [
    Sent(
        document="dialogporten",
        operation="V1EndUserDialogsSearch_SearchDialog",
        args={
            "org": ["digdir", "skd"],
            "status": ["New", "InProgress"],
            "externalReference": None,
            "createdAfter": "2025-01-31T10:00:00+01:00",
            "limit": 10,
        },
        line="GET /api/v1/enduser/dialogs?org=digdir&org=skd&status=New&status=InProgress"
        "&createdAfter=2025-01-31T10%3A00%3A00%2B01%3A00&limit=10",
    ),
    Sent(
        document="dialogporten",
        operation="V1ServiceOwnerDialogsPatchDialog",
        args={
            "dialogId": UUID,
            "If-Match": UUID,
            "body": [{"op": "replace", "path": "/progress", "value": 50}],
        },
        line=f"PATCH /api/v1/serviceowner/dialogs/{UUID}",
        headers={"if-match": UUID, "content-type": "application/json"},
        body=[{"op": "replace", "path": "/progress", "value": 50}],
    ),
    Sent(
        document="dialogporten",
        operation="V1ServiceOwnerDialogsDelete_Dialog",
        args={"dialogId": UUID, "if-Match": UUID},
        line=f"DELETE /api/v1/serviceowner/dialogs/{UUID}",
        headers={"if-match": UUID},
    ),
    Sent(
        document="dialogporten",
        operation="V1ServiceOwnerDialogActivitiesNotificationCondition_NotificationCondition",
        args={"dialogId": UUID, "conditionType": "Exists", "activityType": "DialogClosed"},
        line=f"GET /api/v1/serviceowner/dialogs/{UUID}/actions/should-send-notification"
        "?conditionType=Exists&activityType=DialogClosed",
    ),
]
FIGMA = [
    Sent(
        document="figma",
        operation="getFile",
        args={"file_key": "k", "ids": "1:2,1:3", "depth": 2.0, "branch_data": True},
        line="GET /v1/files/k?ids=1%3A2%2C1%3A3&depth=2&branch_data=true",
    ),
    Sent(
        document="figma",
        operation="getImages",
        args={"file_key": "k", "ids": "1:2", "scale": 0.5, "format": "svg"},
        line="GET /v1/images/k?ids=1%3A2&scale=0.5&format=svg",
    ),
    Sent(
        document="figma",
        operation="postComment",
        args={"file_key": "k", "message": "Hé", "client_meta": {"x": 1, "y": 2.5}},
        line="POST /v1/files/k/comments",
        headers={"content-type": "application/json"},
        body={"message": "Hé", "client_meta": {"x": 1, "y": 2.5}},
    ),
    Sent(
        document="figma",
        operation="deleteCommentReaction",
        args={"file_key": "k", "comment_id": "9", "emoji": ":heart::skin-tone-2:"},
        line="DELETE /v1/files/k/comments/9/reactions?emoji=%3Aheart%3A%3Askin-tone-2%3A",
    ),
    Sent(
        document="figma",
        operation="postWebhook",
        args={
            "event_type": "PING",
            "context": "team",
            "context_id": "1",
            "endpoint": "https://x.example/hook",
            "passcode": "p",
        },
        line="POST /v2/webhooks",
        headers={"content-type": "application/json"},
        body={
            "event_type": "PING",
            "context": "team",
            "context_id": "1",
            "endpoint": "https://x.example/hook",
            "passcode": "p",
        },
    ),
    Sent(
        document="figma",
        operation="getActivityLogs",
        args={"events": "file_create", "start_time": 1735689600, "order": "desc"},
        line="GET /v1/activity_logs?events=file_create&start_time=1735689600&order=desc",
    ),
]
CATALYST = [
    Sent(
        document="catalyst",
        operation="headContentFile",
        args={"hashId": "bafy+1"},
        line="HEAD /content/contents/bafy%2B1",
    ),
    Sent(
        document="catalyst",
        operation="getAvailableContent",
        args={"cid": ["a", "b"]},
        line="GET /content/available-content?cid=a&cid=b",
    ),
    Sent(
        document="catalyst",
        operation="postEntity",
        args={"entityId": "e", "files": ["one", "zwö"], "authChain": '[{"type":"SIGNER"}]'},
        line="POST /content/entities",
        headers={"content-type": "multipart/form-data"},
        body=[
            part("entityId", "e"),
            part("files", "one", TEXT, "files"),
            part("files", "zwö", TEXT, "files"),
            part("authChain", '[{"type":"SIGNER"}]'),
        ],
    ),
    Sent(
        document="catalyst",
        operation="getActiveEntities",
        args={"pointers": ["0,0", "0,1"]},
        line="POST /content/entities/active",
        headers={"content-type": "application/json"},
        body={"pointers": ["0,0", "0,1"]},
    ),
    Sent(
        document="catalyst",
        operation="getPointerChanges",
        args={"from": 1, "lastId": "", "sortingOrder": "ASC"},
        line="GET /content/pointer-changes?from=1&lastId=&sortingOrder=ASC",
    ),
    Sent(
        document="catalyst",
        operation="validateSignature",
        args={"body": {"timestamp": "1"}},
        line="POST /lambdas/crypto/validate-signature",
        headers={"content-type": "application/json; charset=utf-8"},
        body={"timestamp": "1"},
    ),
]
AIRFLOW = [
    Sent(
        document="airflow",
        operation="patch_connection",
        args={
            "connection_id": "db",
            "update_mask": ["host", "port"],
            "connection_id_body": "db",
            "conn_type": "postgres",
            "host": None,
            "port": 5432,
        },
        line="PATCH /api/v2/connections/db?update_mask=host&update_mask=port",
        headers={"content-type": "application/json"},
        body={"connection_id": "db", "conn_type": "postgres", "host": None, "port": 5432},
    ),
    Sent(
        document="airflow",
        operation="get_dags",
        args={"limit": 5, "tags": ["a b", "c"], "tags_match_mode": None, "paused": False},
        line="GET /api/v2/dags?limit=5&tags=a%20b&tags=c&paused=false",
    ),
    Sent(
        document="airflow",
        operation="trigger_dag_run",
        args={"dag_id": "etl@1", "logical_date": None, "conf": {"n": 1}},
        line="POST /api/v2/dags/etl%401/dagRuns",
        headers={"content-type": "application/json"},
        body={"logical_date": None, "conf": {"n": 1}},
    ),
    Sent(
        document="airflow",
        operation="get_connection_test",
        args={"Airflow-Connection-Test-Token": "t-1"},
        line="GET /api/v2/connections/enqueue-test",
        headers={"airflow-connection-test-token": "t-1"},
    ),
    Sent(
        document="airflow",
        operation="patch_pool",
        args={"pool_name": "p", "slots": -1},
        line="PATCH /api/v2/pools/p",
        headers={"content-type": "application/json"},
        body={"slots": -1},
    ),
    Sent(
        document="airflow",
        operation="set_task_state_store",
        args={
            "key": "k",
            "dag_id": "d",
            "dag_run_id": "manual__2025-01-31T00:00:00+00:00",
            "task_id": "t",
            "map_index": -1,
            "value": [1, "two"],
        },
        line="PUT /api/v2/dags/d/dagRuns/manual__2025-01-31T00%3A00%3A00%2B00%3A00"
        "/taskInstances/t/state-store/k?map_index=-1",
        headers={"content-type": "application/json"},
        body={"value": [1, "two"]},
    ),
]
OTHERS = [
    Sent(
        document="blockfrost",
        operation="POST /tx/submit",
        args={"body": "data:;base64,g0OhAQI="},
        line="POST /tx/submit",
        headers={"content-type": "application/cbor"},
        body=b"\x83C\xa1\x01\x02",
    ),
    Sent(
        document="blockfrost",
        operation="POST /utils/txs/evaluate",
        args={"body": "83a4", "version": 6},
        line="POST /utils/txs/evaluate?version=6",
        headers={"content-type": "application/cbor"},
        body="83a4",
    ),
    Sent(
        document="blockfrost",
        operation="ipfs_add",
        args={"file": PNG},
        line="POST /ipfs/add",
        headers={"content-type": "multipart/form-data"},
        body=[("file", "file", "image/png", b"\x89PNG\r\n\x1a\n")],
    ),
    Sent(
        document="blockfrost",
        operation="POST /ipfs/pin/add/{IPFS_path}",
        args={"IPFS_path": "Qm1", "filecoin": True},
        line="POST /ipfs/pin/add/Qm1?filecoin=true",
    ),
    Sent(
        document="blockfrost",
        operation="GET /addresses/{address}/transactions",
        args={"address": "addr1", "count": 5, "order": "desc", "from": "8929261", "to": "9:10"},
        line="GET /addresses/addr1/transactions?count=5&order=desc&from=8929261&to=9%3A10",
    ),
    Sent(
        document="jupyterlab",
        operation="PUT /lab/api/settings/{schema_name}",
        args={"schema_name": "@jupyterlab:themes", "raw": "{}"},
        line="PUT /lab/api/settings/%40jupyterlab%3Athemes",
        headers={"content-type": "application/json"},
        body={"raw": "{}"},
    ),
    Sent(
        document="jupyterlab",
        operation="PUT /lab/api/workspaces/{space_name}",
        args={"space_name": "w 1", "data": {"a": [1]}, "metadata": {"id": "w"}},
        line="PUT /lab/api/workspaces/w%201",
        headers={"content-type": "application/json"},
        body={"data": {"a": [1]}, "metadata": {"id": "w"}},
    ),
    Sent(
        document="jupyterlab",
        operation="GET /lab/api/licenses/",
        args={"full_text": True, "format": "csv", "bundles": ".*"},
        line="GET /lab/api/licenses/?full_text=true&format=csv&bundles=.%2A",
    ),
    Sent(
        document="scalar-galaxy",
        operation="getAllData",
        args={"limit": 10.0, "offset": 0},
        line="GET /planets?limit=10&offset=0",
    ),
    Sent(
        document="scalar-galaxy",
        operation="createPlanet",
        args={"name": "Mars", "image": None, "creator": {"email": "a@b.example", "password": "p"}},
        line="POST /planets",
        headers={"content-type": "application/json"},
        body={"name": "Mars", "image": None, "creator": {"email": "a@b.example", "password": "p"}},
    ),
    Sent(
        document="scalar-galaxy",
        operation="uploadImage",
        args={"planetId": 1, "image": PNG},
        line="POST /planets/1/image",
        headers={"content-type": "multipart/form-data"},
        body=[("image", "image", "image/png", b"\x89PNG\r\n\x1a\n")],
    ),
    Sent(
        document="readme-file-uploads",
        operation="POST /anything/image-png",
        args={"body": PNG},
        line="POST /anything/image-png",
        headers={"content-type": "image/png"},
        body=b"\x89PNG\r\n\x1a\n",
    ),
    Sent(
        document="readme-file-uploads",
        operation="POST /anything/multipart-formdata",
        args={"orderId": 10, "userId": 3.0, "documentFile": "a;b\r\n"},
        line="POST /anything/multipart-formdata",
        headers={"content-type": "multipart/form-data"},
        body=[
            part("orderId", "10"),
            part("userId", "3"),
            part("documentFile", "a;b\r\n", TEXT, "documentFile"),
        ],
    ),
    Sent(
        document="readme-form-data",
        operation="demoFormData",
        args={"client_id": "a=b", "client_secret": "ü +", "scope": 1},
        line="POST /anything",
        headers={"content-type": "application/x-www-form-urlencoded"},
        body="client_id=a%3Db&client_secret=%C3%BC+%2B&scope=1",
    ),
    Sent(
        document="readme-form-data",
        operation="demoFormData",
        args={},
        line="POST /anything",
    ),
]
REQUESTS = [*STYLES, *PETSTORE, *RCLONE, *DIALOGPORTEN, *FIGMA, *CATALYST, *AIRFLOW, *OTHERS]


@pytest.fixture(scope="module")
def tools(api_server: Api) -> list[Tool]:
    """Return the tools of all requests, which share a client."""
    configured = {
        f"tool-{number:03}": {
            "openapi": str(DOCUMENTS / f"{each.document}.json"),
            "operation_id": each.operation,
            "url": api_server.url,
        }
        for number, each in enumerate(REQUESTS)
    }
    return list(Toolbox(ToolSettings.model_validate({"http": configured}), points=[]).tools)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("sent", REQUESTS, ids=lambda sent: f"{sent.document} {sent.operation}")
async def test_a_server_receives_the_request_of_the_document(
    api: Api, tools: list[Tool], sent: Sent
) -> None:
    """The arguments are valid, and the request is the one that was written by hand."""
    result = await run_tool(tools[REQUESTS.index(sent)], sent.args)

    assert "error" not in result
    ((line, headers, body),) = api.requests
    assert line == f"{sent.line} HTTP/1.1"
    kind = headers.get("content-type", "")
    expected = dict(sent.headers)
    if isinstance(sent.body, list) and "multipart" in kind:
        assert kind.startswith(f"{expected.pop('content-type')}; boundary=")
        assert parts_in(kind, body) == sent.body
    elif isinstance(sent.body, str | bytes):
        assert body == (sent.body.encode() if isinstance(sent.body, str) else sent.body)
    elif sent.body is None:
        assert (body, kind) == (b"", "")
    else:
        assert json.loads(body) == sent.body
    assert {name: headers.get(name) for name in expected} == expected
    assert kind == "" or "content-type" in sent.headers


def test_eight_documents_have_sixty_operations() -> None:
    """The documents come from eight packages of other authors."""
    packages = {
        json.loads(each.read_text())["info"]["x-source"].rpartition(" ")[0]
        for each in DOCUMENTS.glob("*.json")
    }

    assert len(packages) >= 8
    assert len({(each.document, each.operation) for each in REQUESTS}) >= 60


@pytest.mark.parametrize(
    ("document", "operation", "address"),
    [
        ("readme-servers", "POST /global", "https://demo.example.com:443/v2/global"),
        ("readme-servers", "POST /operation", "https://httpbin.com/anything/demo/operation"),
        ("readme-servers", "PUT /path", "https://httpbin.com/anything/common/demo/path"),
        ("readme-servers", "PUT /combo", "https://httpbin.com/anything/demo/combo"),
        ("blockfrost", "ipfs_add", "https://ipfs.blockfrost.io/api/v0/ipfs/add"),
        ("blockfrost", "POST /tx/submit", "https://cardano-mainnet.blockfrost.io/api/v0/tx/submit"),
        ("scalar-galaxy", "getAllData", "https://galaxy.scalar.com/planets"),
    ],
)
def test_the_document_names_the_server_of_an_operation(
    document: str, operation: str, address: str
) -> None:
    """A server of the operation or its path precedes those of the document."""
    written = json.loads((DOCUMENTS / f"{document}.json").read_text())

    made_of = operation_of(written, operation, server=None, description=None, headers=())

    assert made_of.url == address

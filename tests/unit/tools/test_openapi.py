"""Operations of OpenAPI documents: parameters, bodies, references and servers.

The expected texts were written by hand from the OpenAPI Specification 3.1.1 and RFC 6570.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from caseworker import ToolRefusedError
from caseworker.main.configuration import StartupError
from caseworker.testing import run_tool
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.http_request import HttpOperation
from caseworker.tools.openapi import operation_of
from caseworker.tools.ports import ToolSpec
from tests.unit.tools.http_support import Api, http_tool, parts_in

TEXT = {"type": "string"}
RGB = {"R": 100, "G": 200, "B": 150}
LIST = ["blue", "black", "brown"]
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


def document(item: dict[str, Any], path: str = "/x", **more: Any) -> dict[str, Any]:
    """Return a document with one path, whose operations have IDs and summaries."""
    for method in item.keys() & {"get", "post", "put", "patch", "delete"}:
        item[method] = {"operationId": "it", "summary": "It.", **item[method]}
    return {"openapi": "3.1.0", "servers": [{"url": "https://h"}], "paths": {path: item}, **more}


def operation(item: dict[str, Any], path: str = "/x", **more: Any) -> HttpOperation:
    """Return the operation of a document with one path; its schema is valid."""
    made_of = operation_of(
        document(item, path, **more), "it", server=None, description=None, headers=()
    )
    ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))
    return made_of


def taking(place: str, path: str = "/x", name: str = "color", **about: Any) -> HttpOperation:
    """Return an operation with one parameter."""
    schema: dict[str, Any] = {} if "content" in about else {"schema": {}}
    given = {key: value for key, value in about.items() if value is not None}
    parameter = {"name": name, "in": place, "required": True, **schema, **given}
    return operation({"get": {"parameters": [parameter]}}, path)


def posting(kind: str, schema: Any, version: str = "3.1.0", **media: Any) -> HttpOperation:
    """Return an operation with a required body."""
    body = {"required": True, "content": {kind: {"schema": schema, **media}}}
    return operation({"post": {"requestBody": body}}, openapi=version)


@pytest.mark.parametrize(
    ("style", "explode", "value", "expected"),
    [
        ("form", None, "blue", "color=blue"),
        ("form", None, "", "color="),
        ("form", None, LIST, "color=blue&color=black&color=brown"),
        ("form", None, RGB, "R=100&G=200&B=150"),
        ("form", True, [1, 2.0, 2.5, True, None], "color=1&color=2&color=2.5&color=true"),
        ("form", True, [], ""),
        ("form", True, {"R": [1, 2]}, "R=%5B1%2C2%5D"),
        ("form", False, LIST, "color=blue,black,brown"),
        ("form", False, ["a,b", "c d", "é"], "color=a%2Cb,c%20d,%C3%A9"),
        ("form", False, RGB, "color=R,100,G,200,B,150"),
        ("form", False, [], ""),
        ("form", False, "", "color="),
        ("form", None, None, ""),
        ("spaceDelimited", False, LIST, "color=blue%20black%20brown"),
        ("spaceDelimited", None, RGB, "color=R%20100%20G%20200%20B%20150"),
        ("spaceDelimited", True, LIST, "color=blue&color=black&color=brown"),
        ("pipeDelimited", False, LIST, "color=blue%7Cblack%7Cbrown"),
        ("pipeDelimited", None, RGB, "color=R%7C100%7CG%7C200%7CB%7C150"),
        ("pipeDelimited", False, "blue", "color=blue"),
        ("deepObject", True, RGB, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
        (
            "deepObject",
            None,
            {"a": {"b": [1, 2]}},
            "color%5Ba%5D%5Bb%5D%5B0%5D=1&color%5Ba%5D%5Bb%5D%5B1%5D=2",
        ),
        ("deepObject", True, {"a]&b": "x", "n": None}, "color%5Ba%5D%26b%5D=x"),
    ],
)
def test_a_query_is_written_in_the_style_of_its_parameter(
    style: str, explode: bool | None, value: Any, expected: str
) -> None:
    """Items are encoded, delimiters are not; null has no form."""
    url, _, _ = taking("query", style=style, explode=explode).request({"color": value})

    assert url == f"https://h/x?{expected}".rstrip("?")


@pytest.mark.parametrize(
    ("style", "explode", "value", "expected"),
    [
        ("simple", None, "blue", "blue"),
        ("simple", None, LIST, "blue,black,brown"),
        ("simple", None, RGB, "R,100,G,200,B,150"),
        ("simple", True, LIST, "blue,black,brown"),
        ("simple", True, RGB, "R=100,G=200,B=150"),
        ("simple", False, ["a,b", 2.0, None], "a%2Cb,2"),
        ("label", None, "blue", ".blue"),
        ("label", None, LIST, ".blue,black,brown"),
        ("label", None, RGB, ".R,100,G,200,B,150"),
        ("label", True, LIST, ".blue.black.brown"),
        ("label", True, RGB, ".R=100.G=200.B=150"),
        ("matrix", None, "blue", ";color=blue"),
        ("matrix", None, "", ";color"),
        ("matrix", None, LIST, ";color=blue,black,brown"),
        ("matrix", None, RGB, ";color=R,100,G,200,B,150"),
        ("matrix", True, LIST, ";color=blue;color=black;color=brown"),
        ("matrix", True, RGB, ";R=100;G=200;B=150"),
        ("matrix", True, ["a;b", "="], ";color=a%3Bb;color=%3D"),
    ],
)
def test_a_path_is_written_in_the_style_of_its_parameter(
    style: str, explode: bool | None, value: Any, expected: str
) -> None:
    """The styles are those of RFC 6570."""
    made_of = taking("path", "/a/{color}/b", style=style, explode=explode)

    assert made_of.request({"color": value})[0] == f"https://h/a/{expected}/b"


@pytest.mark.parametrize(
    ("style", "explode", "value"),
    [
        ("simple", False, ""),
        ("simple", False, []),
        ("simple", False, None),
        ("simple", True, ["a", "../b"]),
        ("simple", True, {"a": "x/y"}),
        ("label", False, ""),
        ("label", False, "."),
        ("label", True, [".", "."]),
        ("matrix", True, ["..", "\\"]),
        ("matrix", True, {"/": "x"}),
    ],
)
def test_no_style_lets_a_value_change_the_path(style: str, explode: bool, value: Any) -> None:
    """A segment is never empty, never dots, and contains no slash, also after decoding."""
    made_of = taking("path", "/a/{color}/b", style=style, explode=explode)

    with pytest.raises(ToolRefusedError, match="may not be empty or dots"):
        made_of.request({"color": value})


@pytest.mark.parametrize(
    ("explode", "value", "expected"),
    [
        (None, "blue", "blue"),
        (None, LIST, "blue,black,brown"),
        (None, RGB, "R,100,G,200,B,150"),
        (True, RGB, "R=100,G=200,B=150"),
        (False, ["a b", "50%"], "a b,50%"),
        (False, True, "true"),
        (False, 2.0, "2"),
    ],
)
def test_a_header_is_written_in_the_simple_style(
    explode: bool | None, value: Any, expected: str
) -> None:
    """Headers are not percent-encoded."""
    made_of = taking("header", name="X-Color", explode=explode)

    assert made_of.request({"X-Color": value})[1] == {"X-Color": expected}
    assert made_of.request({"X-Color": None})[1] == {}


@pytest.mark.parametrize(
    ("explode", "value", "expected"),
    [
        (None, "blue", "color=blue"),
        (None, "a b;c=d,é", "color=a%20b%3Bc%3Dd%2C%C3%A9"),
        (None, LIST, "color=blue; color=black; color=brown"),
        (False, LIST, "color=blue,black,brown"),
        (False, RGB, "color=R,100,G,200,B,150"),
        (True, RGB, "R=100; G=200; B=150"),
    ],
)
def test_a_cookie_is_written_in_the_form_style(
    explode: bool | None, value: Any, expected: str
) -> None:
    """Semicolons separate cookies (RFC 6265); ampersands do not."""
    made_of = taking("cookie", explode=explode)

    assert made_of.request({"color": value})[1] == {"cookie": expected}
    assert made_of.request({"color": None})[1] == {}


@pytest.mark.parametrize(
    ("explode", "value", "expected"),
    [
        (True, "a/b:c?d=e@f!$'()*,", "color=a/b:c?d=e@f!$'()*,"),
        (True, "x&admin=1", "color=x%26admin=1"),
        (True, "#+ %2F[é];", "color=%23%2B%20%252F%5B%C3%A9%5D%3B"),
        (True, ["a/b", "c"], "color=a/b&color=c"),
        (False, ["a/b,c", "d"], "color=a/b%2Cc,d"),
    ],
)
def test_reserved_characters_stay_where_the_parameter_allows_them(
    explode: bool, value: Any, expected: str
) -> None:
    """Characters that could end the value are still encoded."""
    made_of = taking("query", allowReserved=True, explode=explode)

    assert made_of.request({"color": value})[0] == f"https://h/x?{expected}"


@pytest.mark.parametrize("name", ["admin", "api-key", "notify[all]", "v"])
@pytest.mark.parametrize("place", ["query", "cookie"])
def test_an_object_sets_no_other_parameter(place: str, name: str) -> None:
    """The properties of an exploded object are names in the request, which a model may choose."""
    others: list[dict[str, Any]] = [
        {"name": each, "in": place, "schema": {}} for each in ("admin", "api-key", "notify[all]")
    ]
    free = {"name": "free", "in": place, "schema": {"type": "object"}}
    path = "/x?v=1" if place == "query" else "/x"
    made_of = operation({"get": {"parameters": [*others, free]}}, path)

    url, headers, _ = made_of.request({"free": {"color": "blue"}, "admin": "no"})
    assert ("color=blue" in url) or ("color=blue" in headers["cookie"])
    if (place, name) != ("cookie", "v"):
        with pytest.raises(ToolRefusedError, match=r"free: '.*' is another argument, or fixed"):
            made_of.request({"free": {name: "1"}})


@pytest.mark.parametrize(
    ("fixed", "style", "value"),
    [
        ("filter[t]=a", "deepObject", {"t": "b"}),
        ("filter%5Bt%5D=a", "deepObject", {"t": "b"}),
        ("filter%5bt]=a&v=1", "deepObject", {"t": "b"}),
        ("$format=json", "form", {"$format": "xml"}),
        ("%24format=json", "form", {"$format": "xml"}),
        ("two+words=1", "form", {"two words": "2"}),
        ("two%20words=1", "form", {"two words": "2"}),
        ("caf\u00e9=1", "form", {"caf\u00e9": "2"}),
        ("v=1", "form", {"v[]": "2"}),
        ("v", "form", {"v": "2"}),
    ],
)
def test_an_object_sets_no_fixed_name(fixed: str, style: str, value: dict[str, Any]) -> None:
    """A server decodes names, so the ways to write one name are the same."""
    made_of = taking("query", f"/x?{fixed}", "filter", style=style)

    assert made_of.request({"filter": {"free": "1"}})[0].startswith(f"https://h/x?{fixed}&")
    with pytest.raises(ToolRefusedError, match=r"filter: '.*' is another argument, or fixed"):
        made_of.request({"filter": value})


def test_two_objects_set_different_names() -> None:
    """Servers differ in which of two equal names they read."""
    objects: list[dict[str, Any]] = [
        {"name": each, "in": "query", "schema": {}} for each in ("a", "b")
    ]
    made_of = operation({"get": {"parameters": objects}})

    assert made_of.request({"a": {"x": 1}, "b": {"y": 2}})[0] == "https://h/x?x=1&y=2"
    with pytest.raises(ToolRefusedError, match="b: 'x' is another argument"):
        made_of.request({"a": {"x": 1}, "b": {"x": 2}})


FILTER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("place", "kind", "value", "expected"),
    [
        ("query", "application/json", {"a": 1}, "https://h/x?color=%7B%22a%22%3A1%7D"),
        ("query", "Application/JSON; x=1", {"a": 1}, "https://h/x?color=%7B%22a%22%3A1%7D"),
        (
            "query",
            "application/vnd.f+json",
            {"a": 1, "b": [2]},
            "https://h/x?color=%7B%22a%22%3A1%2C%22b%22%3A%5B2%5D%7D",
        ),
        ("header", "application/json", {"a": 1}, {"color": '{"a":1}'}),
        ("cookie", "application/json", {"a": 1}, {"cookie": "color=%7B%22a%22%3A1%7D"}),
        ("path", "application/json", {"a": 1}, "https://h/%7B%22a%22%3A1%7D"),
    ],
)
def test_a_parameter_with_content_keeps_its_schema_and_media_type(
    place: str, kind: str, value: Any, expected: Any
) -> None:
    """A value of another shape is refused before the request."""
    path = "/{color}" if place == "path" else "/x"
    made_of = taking(place, path, content={kind: {"schema": FILTER}})

    url, headers, _ = made_of.request({"color": value})

    assert expected in (url, headers)
    spec = ToolSpec(name="it", description="", parameters=made_of.parameters)
    assert made_of.parameters["properties"]["color"] == FILTER
    assert "'color.a' is missing" in str(ArgumentCheck(spec).problem({"color": {}}))


def test_a_parameter_with_text_content_is_text() -> None:
    """Only JSON is written as JSON."""
    made_of = taking("query", content={"text/plain": {"schema": TEXT}})

    assert made_of.request({"color": '"a"'})[0] == "https://h/x?color=%22a%22"


OBJECT = {"type": "object", "properties": {"a": TEXT, "n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("kind", "schema", "args", "sent_kind", "body"),
    [
        ("application/json", OBJECT, {"a": "é"}, None, b'{"a": "\\u00e9"}'),
        (
            "application/merge-patch+json",
            OBJECT,
            {"a": "x", "n": None},
            None,
            b'{"a": "x", "n": null}',
        ),
        ("application/vnd.api+json", OBJECT, {"n": 1}, None, b'{"n": 1}'),
        ("Application/JSON; charset=utf-8", OBJECT, {"n": 1}, None, b'{"n": 1}'),
        (
            "application/json-patch+json",
            {"type": "array"},
            {"body": [{"op": "test"}]},
            None,
            b'[{"op": "test"}]',
        ),
        ("application/json", {"type": ["object", "null"]}, {"body": None}, None, b"null"),
        ("application/json", TEXT, {"body": "x"}, None, b'"x"'),
        ("*/*", OBJECT, {"n": 1}, "application/json", b'{"n": 1}'),
        ("application/*", OBJECT, {"n": 1}, "application/json", b'{"n": 1}'),
        ("text/plain", TEXT, {"body": "a b"}, None, b"a b"),
        ("text/plain", TEXT, {"body": "é"}, "text/plain; charset=utf-8", "é".encode()),
        ("text/csv; header=present", TEXT, {"body": "a,b\n"}, None, b"a,b\n"),
        ("text/*", TEXT, {"body": "x"}, "text/plain", b"x"),
        ("application/xml", OBJECT, {"body": "<a/>"}, None, b"<a/>"),
        ("application/x-ndjson", {}, {"body": "{}\n{}\n"}, None, b"{}\n{}\n"),
        (
            "application/octet-stream",
            {"type": "string", "format": "binary"},
            {"body": "data:;base64,/wA="},
            None,
            b"\xff\x00",
        ),
        ("application/octet-stream", {}, {"body": "plain"}, None, b"plain"),
        ("image/*", {}, {"body": "data:image/gif;base64,R0lG"}, "image/gif", b"GIF"),
        ("image/png", {}, {"body": "data:,a%20b"}, None, b"a b"),
    ],
)
def test_a_body_has_the_media_type_of_the_document(
    kind: str, schema: Any, args: dict[str, Any], sent_kind: str | None, body: bytes
) -> None:
    """JSON types keep their name; text is sent as it is; bytes come from a data URL."""
    _, headers, content = posting(kind, schema).request(args)

    assert (headers, content) == ({"content-type": sent_kind or kind}, body)


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (["application/xml", "application/json"], "application/json"),
        (["text/plain", "application/vnd.api+json"], "application/vnd.api+json"),
        ([MULTIPART, FORM], FORM),
        (["multipart/mixed", "application/xml"], "application/xml"),
        (["image/png", "text/plain"], "text/plain"),
        (["application/hal+json", "application/json"], "application/hal+json"),
    ],
)
def test_the_body_of_several_media_types_is_the_one_with_fields(
    kinds: list[str], chosen: str
) -> None:
    """JSON is preferred, then forms, then text."""
    body = {"content": {kind: {"schema": OBJECT} for kind in kinds}, "required": True}
    made_of = operation({"post": {"requestBody": body}})

    assert made_of.body is not None
    assert made_of.body.media_type == chosen


@pytest.mark.parametrize("is_required", [True, False])
def test_an_optional_body_is_sent_only_with_arguments(is_required: bool) -> None:
    """A required body without arguments is an empty object."""
    body = {"content": {"application/json": {"schema": OBJECT}}, "required": is_required}
    made_of = operation({"post": {"requestBody": body}})

    expected = ({"content-type": "application/json"}, b"{}") if is_required else ({}, b"")
    assert made_of.request({})[1:] == expected
    assert made_of.request({"n": 1})[2] == b'{"n": 1}'


@pytest.mark.parametrize(
    ("args", "encoding", "expected"),
    [
        ({"a": "x y&z=ü+"}, {}, "a=x+y%26z%3D%C3%BC%2B"),
        ({"list": LIST}, {}, "list=blue&list=black&list=brown"),
        ({"object": RGB}, {}, "object=%7B%22R%22%3A100%2C%22G%22%3A200%2C%22B%22%3A150%7D"),
        ({"a": None, "list": []}, {}, ""),
        ({"list": LIST}, {"explode": False}, "list=blue,black,brown"),
        ({"list": LIST}, {"style": "spaceDelimited"}, "list=blue+black+brown"),
        ({"list": LIST}, {"style": "pipeDelimited", "explode": False}, "list=blue%7Cblack%7Cbrown"),
        (
            {"object": RGB},
            {"style": "deepObject", "explode": True},
            "object%5BR%5D=100&object%5BG%5D=200&object%5BB%5D=150",
        ),
        ({"object": {"a": [{"b": 1}]}}, {"style": "deepObject"}, "object%5Ba%5D%5B0%5D%5Bb%5D=1"),
        ({"object": RGB}, {"style": "form"}, "R=100&G=200&B=150"),
        ({"list": [1, 2]}, {"contentType": "application/json"}, "list=%5B1%2C2%5D"),
        ({"a": "x/y"}, {"allowReserved": True}, "a=x/y"),
        ({"a": True, "n": 3.0}, {}, "a=true&n=3"),
    ],
)
def test_a_form_is_written_as_its_encoding_says(
    args: dict[str, Any], encoding: dict[str, Any], expected: str
) -> None:
    """By default, lists repeat their name and objects are JSON."""
    schema = {"type": "object", "properties": {"a": {}, "n": {}, "list": {}, "object": {}}}
    made_of = posting(FORM, schema, encoding=dict.fromkeys(schema["properties"], encoding))

    assert made_of.request(args)[1:] == ({"content-type": FORM}, expected.encode())


BINARY = {"type": "string", "format": "binary"}


def parts_of(made_of: HttpOperation, args: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return name, file name, media type and content of the parts of a request."""
    _, headers, content = made_of.request(args)
    return parts_in(headers["content-type"], content)


@pytest.mark.parametrize(
    ("schema", "encoding", "value", "parts"),
    [
        (TEXT, {}, "é\r\n--", [("a", None, None, "é\r\n--".encode())]),
        ({}, {}, 2.0, [("a", None, None, b"2")]),
        ({}, {}, True, [("a", None, None, b"true")]),
        ({"type": "object"}, {}, {"x": 1}, [("a", None, "application/json", b'{"x":1}')]),
        ({"type": "array"}, {}, ["x", None, 1], [("a", None, None, b"x"), ("a", None, None, b"1")]),
        ({}, {"contentType": "application/json"}, "x", [("a", None, "application/json", b'"x"')]),
        ({}, {"contentType": "text/csv"}, "x,y", [("a", None, "text/csv", b"x,y")]),
        (BINARY, {}, "x", [("a", "a", "application/octet-stream", b"x")]),
        (BINARY, {}, "data:image/png;base64,iVBO", [("a", "a", "image/png", b"\x89PN")]),
        (BINARY, {"contentType": "image/png, image/gif"}, "x", [("a", "a", "image/png", b"x")]),
        (BINARY, {"contentType": "image/*"}, "data:image/gif,x", [("a", "a", "image/gif", b"x")]),
        (
            {"type": "array", "items": BINARY},
            {},
            ["x", "y"],
            [
                ("a", "a", "application/octet-stream", b"x"),
                ("a", "a", "application/octet-stream", b"y"),
            ],
        ),
        (
            {"contentMediaType": "image/png"},
            {},
            "x",
            [("a", "a", "application/octet-stream", b"x")],
        ),
        (
            {"anyOf": [BINARY, {"type": "null"}]},
            {},
            "x",
            [("a", "a", "application/octet-stream", b"x")],
        ),
        (
            {"$ref": "#/components/schemas/File"},
            {},
            "x",
            [("a", "a", "application/octet-stream", b"x")],
        ),
        (
            {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
            {},
            "eA==",
            [("a", None, None, b"eA==")],
        ),
        ({}, {"style": "deepObject"}, {"x": 1}, [("a[x]", None, None, b"1")]),
        ({}, {"style": "form", "explode": False}, ["x", "y"], [("a", None, None, b"x,y")]),
    ],
)
def test_a_multipart_body_has_a_part_for_each_value(
    schema: Any, encoding: dict[str, Any], value: Any, parts: list[tuple[Any, ...]]
) -> None:
    """Files have a file name; the encoding of a property names its media type."""
    whole = {"type": "object", "properties": {"a": schema}}
    body = {"content": {MULTIPART: {"schema": whole, "encoding": {"a": encoding}}}}
    made_of = operation({"post": {"requestBody": body}}, components={"schemas": {"File": BINARY}})

    assert parts_of(made_of, {"a": value}) == parts
    assert made_of.request({"a": value}) == made_of.request({"a": value})


def test_a_multipart_body_of_openapi_3_0_has_no_styles() -> None:
    """Version 3.0 ignores the style of a property there; 3.1 does not."""
    schema = {"type": "object", "properties": {"a": {}}}
    made_of = posting(MULTIPART, schema, "3.0.3", encoding={"a": {"style": "deepObject"}})

    assert parts_of(made_of, {"a": {"x": 1}}) == [("a", None, "application/json", b'{"x":1}')]


def test_the_parts_of_a_composed_body_follow_their_own_schemas() -> None:
    """A body of several schemas is one argument, and its files are still files."""
    file = {"type": "object", "properties": {"a": BINARY}}
    name = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made_of = posting(MULTIPART, {"allOf": [file, name]})

    assert parts_of(made_of, {"body": {"a": "x", "n": 2.0}}) == [
        ("a", "a", "application/octet-stream", b"x"),
        ("n", None, None, b"2"),
    ]


FIELDS = {
    "mode": {"enum": ["test"]},
    "id": {"type": "integer", "readOnly": True},
    "owner": {"$ref": "#/components/schemas/Owner"},
    "two words": TEXT,
    "meta": {"type": "object"},
    "extra": {"type": "object"},
}


@pytest.mark.parametrize("kind", [FORM, MULTIPART])
@pytest.mark.parametrize("is_composed", [False, True])
@pytest.mark.parametrize(
    "name", ["mode", "id", "owner", "two words", "meta", "meta[a]", "mode[]", "id[0]"]
)
def test_an_object_sets_no_other_field(kind: str, is_composed: bool, name: str) -> None:
    """Neither a field that the model could send itself, nor one that only responses contain."""
    schema: dict[str, Any] = {"type": "object", "properties": FIELDS}
    schema = {"allOf": [schema]} if is_composed else schema
    encoding = {"extra": {"style": "form"}, "meta": {"style": "deepObject"}}
    body = {"required": True, "content": {kind: {"schema": schema, "encoding": encoding}}}
    owner = {"type": "string", "readOnly": True}
    made_of = operation({"post": {"requestBody": body}}, components={"schemas": {"Owner": owner}})

    def request(**fields: Any) -> bytes:
        args = {"mode": "test", "extra": {"free": "yes"}, **fields}
        return made_of.request({"body": args} if is_composed else args)[2]

    assert b"free" in request(meta={"mode": "x", "id": "x"})
    with pytest.raises(ToolRefusedError, match=r"extra: '.*' is another argument, or fixed"):
        request(extra={name: "live"})


@pytest.mark.parametrize("kind", [FORM, MULTIPART])
def test_an_object_sets_no_field_that_only_the_request_has(kind: str) -> None:
    """A whole body as an argument may have fields that its schema does not name."""
    schema = {"type": "object", "properties": {"extra": {"type": "object"}}, "allOf": [{}]}
    made_of = posting(kind, schema, encoding={"extra": {"style": "form"}})

    for args in ({"extra": {"more": "2"}, "more": "1"}, {"more": "1", "extra": {"more": "2"}}):
        with pytest.raises(ToolRefusedError, match="extra: 'more' is another argument"):
            made_of.request({"body": args})


@pytest.mark.parametrize(
    "media_type",
    [
        "image/png\r\nX-Admin: 1",
        "image/\npng",
        "image/\rpng",
        "image/\x00png",
        "a b",
        "é/x",
        "\x7f",
    ],
)
@pytest.mark.parametrize("end", [",x", ";base64,eA==", ";a=b,x"])
@pytest.mark.parametrize("is_part", [False, True])
def test_a_media_type_that_no_header_can_hold_is_refused(
    media_type: str, end: str, is_part: bool
) -> None:
    """The media type of a data URL becomes a header, or the header of a part."""
    url = f"data:{media_type}{end}"
    schema = {"type": "object", "properties": {"body": BINARY}}
    made_of = posting(MULTIPART, schema) if is_part else posting("image/*", {})

    with pytest.raises(ToolRefusedError, match="media type of printable ASCII without spaces"):
        made_of.request({"body": url})


def test_an_invalid_data_url_is_refused() -> None:
    """The model reads what to change."""
    with pytest.raises(ToolRefusedError, match="valid Base64"):
        posting("image/png", {}).request({"body": "data:image/png;base64,?"})


NAMED = {
    "Page[Item]": {"type": "integer"},
    "Node": {
        "type": "object",
        "properties": {"name": TEXT, "next": {"$ref": "#/components/schemas/Node"}},
    },
    "Alias": {"$ref": "#/components/schemas/Node"},
    "a/b~c": {"type": "integer"},
    "100%": {"type": "integer"},
    "Own": {
        "$defs": {"Inner": {"type": "integer"}},
        "$ref": "#/components/schemas/Own/$defs/Inner",
    },
    "Resource": {
        "$id": "https://example.com/resource",
        "$defs": {"Inner": {"$anchor": "inner", "type": "integer"}},
        "properties": {"x": {"$ref": "#/$defs/Inner"}},
        "type": "object",
    },
    "Tree": {
        "$dynamicAnchor": "node",
        "type": "object",
        "properties": {"x": {"$dynamicRef": "#node"}},
    },
    "Either": {"oneOf": [{"type": "integer"}, {"$ref": "#/components/schemas/Node"}]},
}
SCHEMAS = "#/components/schemas"


@pytest.mark.parametrize(
    ("reference", "valid", "invalid"),
    [
        (f"{SCHEMAS}/Page[Item]", 1, "x"),
        (f"{SCHEMAS}/Page%5BItem%5D", 1, "x"),
        (f"{SCHEMAS}/a~1b~0c", 1, "x"),
        (f"{SCHEMAS}/a%7E1b%7E0c", 1, "x"),
        (f"{SCHEMAS}/100%25", 1, "x"),
        (f"{SCHEMAS}/Node/properties/name", "x", 1),
        (f"{SCHEMAS}/Alias/properties/name", "x", 1),
        (f"{SCHEMAS}/Alias", {"next": {"name": "x"}}, {"next": {"name": 1}}),
        (f"{SCHEMAS}/Node/properties/next/properties/next/properties/name", "x", 1),
        (f"{SCHEMAS}/Either/oneOf/0", 1, "x"),
        (f"{SCHEMAS}/Either/oneOf/1/properties/name", "x", 1),
        (f"{SCHEMAS}/Own", 1, "x"),
        (f"{SCHEMAS}/Own/$defs/Inner", 1, "x"),
        (f"{SCHEMAS}/Resource", {"x": 1}, {"x": "x"}),
        ("https://example.com/resource", {"x": 1}, {"x": "x"}),
        ("https://example.com/resource#/$defs/Inner", 1, "x"),
        ("https://example.com/resource#inner", 1, "x"),
        (f"{SCHEMAS}/Tree", {"x": {"x": {}}}, {"x": {"x": 1}}),
        ("#/paths/~1other~1%7Bid%7D/get/parameters/0/schema", 1, "x"),
        ("#/paths/~1other~1{id}/get/parameters/1/schema", 1, "x"),
        ("#/paths/~1other~1{id}/get/responses/200/content/application~1json/schema/items", 1, "x"),
        ("#/components/parameters/Limit/schema", 1, "x"),
    ],
)
@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
@pytest.mark.parametrize("place", ["query", "body"])
def test_references_of_bundlers_are_resolved(
    reference: str, valid: Any, invalid: Any, version: str, place: str
) -> None:
    """The schema of the arguments is self-contained, and equivalent to the target."""
    schema = {"$ref": reference}
    own: dict[str, Any] = {"parameters": [{"name": "v", "in": "query", "schema": schema}]}
    if place == "body":
        whole = {"type": "object", "properties": {"v": schema}}
        own = {"requestBody": {"content": {"application/json": {"schema": whole}}}}
    other = {
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
            {"$ref": "#/components/parameters/Limit"},
        ],
        "responses": {
            "200": {
                "content": {
                    "application/json": {"schema": {"type": "array", "items": {"type": "integer"}}}
                }
            }
        },
    }
    written = document(
        {"post": own},
        openapi=version,
        components={
            "schemas": NAMED,
            "parameters": {"Limit": {"name": "l", "in": "query", "schema": {"type": "integer"}}},
        },
    )
    written["paths"]["/other/{id}"] = {"get": other}
    made_of = operation_of(written, "it", server=None, description=None, headers=())

    check = ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))

    assert check.problem({"v": valid}) is None
    assert check.problem({"v": invalid}) is not None


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (f"{SCHEMAS}/None", "'#/components/schemas/None' is not in the document"),
        (f"{SCHEMAS}/Either/oneOf/7", "oneOf/7' is not in the document"),
        (f"{SCHEMAS}/Loop", "'#/components/schemas/Loop' refers to itself"),
        (f"{SCHEMAS}/Loop/properties/x", "refers to itself"),
        (f"{SCHEMAS}/Self", "Self/properties/x' refers to itself"),
        (f"{SCHEMAS}/Self/properties/y", "Self/properties/x' refers to itself"),
        ("#nothing", "'#nothing' is not in the document"),
        ("models.yaml#/Pet", "refers to another document: bundle them into one"),
        ("https://example.com/other.json", "refers to another document: bundle them into one"),
    ],
)
def test_a_reference_without_a_target_is_named(reference: str, said: str) -> None:
    """No reference is fetched."""
    loop = {"Loop": {"$ref": f"{SCHEMAS}/Back"}, "Back": {"$ref": f"{SCHEMAS}/Loop"}}
    loop["Self"] = {"$ref": f"{SCHEMAS}/Self/properties/x"}
    parameter = {"name": "v", "in": "query", "schema": {"items": {"$ref": reference}}}

    with pytest.raises(ValueError, match=said):
        operation({"get": {"parameters": [parameter]}}, components={"schemas": NAMED | loop})


def test_parts_of_a_path_may_be_references() -> None:
    """Bundlers move paths, parameters, bodies and media types into components or other paths."""
    written = document({"$ref": "#/components/pathItems/It"})
    written["components"] = {
        "pathItems": {
            "It": {
                "parameters": [{"$ref": "#/paths/~1a/get/parameters/0"}],
                "post": {
                    "operationId": "it",
                    "summary": "It.",
                    "requestBody": {"$ref": "#/components/requestBodies/Alias"},
                },
            }
        },
        "requestBodies": {
            "Alias": {"$ref": "#/components/requestBodies/Body"},
            "Body": {"content": {"application/json": {"schema": OBJECT}}, "required": True},
        },
    }
    limit = {"name": "limit", "in": "query", "schema": {}}
    written["paths"]["/a"] = {"get": {"operationId": "a", "parameters": [limit]}}

    made_of = operation_of(written, "it", server=None, description=None, headers=())

    assert made_of.request({"limit": 1, "n": 2})[::2] == ("https://h/x?limit=1", b'{"n": 2}')


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            {"type": "integer", "exclusiveMinimum": 0},
        ),
        (
            {"type": "integer", "maximum": 9, "exclusiveMaximum": False},
            {"type": "integer", "maximum": 9},
        ),
        ({"type": "string", "nullable": True}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": "string", "required": True}, TEXT),
        ({"type": "string", "examples": {"a": {"value": "x"}}}, TEXT),
        (
            {"type": "string", "xml": {"name": "x"}, "example": {"$ref": "#/x"}},
            {"type": "string", "example": {"$ref": "#/x"}},
        ),
        (
            {"properties": {"xml": TEXT, "example": TEXT, "nullable": {"type": "boolean"}}},
            {"properties": {"xml": TEXT, "example": TEXT, "nullable": {"type": "boolean"}}},
        ),
        (
            {"properties": {"id": {"readOnly": True}, "b": TEXT}, "required": ["id", "b"]},
            {"properties": {"b": TEXT}, "required": ["b"]},
        ),
        (
            {"items": {"properties": {"id": {"readOnly": True, **TEXT}}}},
            {"items": {"properties": {}}},
        ),
    ],
)
def test_schemas_of_openapi_become_json_schemas(schema: Any, expected: Any) -> None:
    """Keywords of version 3.0 are converted, and properties of responses left out."""
    assert taking("query", schema=schema).parameters["properties"]["color"] == expected


def test_arguments_with_equal_names_get_names_of_their_own() -> None:
    """Each argument keeps its own place in the request."""
    parameters = [
        {"name": "id[]", "in": "query", "schema": {}},
        {"name": "id()", "in": "query", "schema": {}},
        {"name": "id{}", "in": "query", "schema": {}},
        {"name": "id[]", "in": "header", "schema": {}},
    ]
    made_of = operation({"get": {"parameters": parameters}})

    names = list(made_of.parameters["properties"])
    url, headers, _ = made_of.request(dict(zip(names, "abcd", strict=True)))

    assert len(set(names)) == 4
    assert (url, headers) == ("https://h/x?id%5B%5D=a&id%28%29=b&id%7B%7D=c", {"id[]": "d"})


OPEN = {"url": "https://{tenant}.h/v1", "variables": {"tenant": {"default": "demo"}}}


@pytest.mark.parametrize(
    ("servers", "of_path", "of_operation", "expected"),
    [
        ([{"url": "https://a/v1/"}], None, None, "https://a/v1/x"),
        ([{"url": "https://a"}], [{"url": "https://b"}], None, "https://b/x"),
        ([{"url": "https://a"}], None, [{"url": "https://c"}], "https://c/x"),
        ([{"url": "https://a"}], [{"url": "https://b"}], [{"url": "https://c"}], "https://c/x"),
        ([{"url": "https://a"}], [], [], "https://a/x"),
        ([], None, [{"url": "http://127.0.0.1:8080/c"}], "http://127.0.0.1:8080/c/x"),
        ([OPEN], None, None, "https://demo.h/v1/x"),
        (
            [
                {
                    "url": "{s}://h:{p}/{v}",
                    "variables": {
                        "s": {"default": "http", "enum": ["http"]},
                        "p": {"default": 81},
                        "v": {"default": "v2"},
                    },
                }
            ],
            None,
            None,
            "http://h:81/v2/x",
        ),
    ],
)
def test_the_server_of_an_operation_precedes_those_of_path_and_document(
    servers: Any, of_path: Any, of_operation: Any, expected: str
) -> None:
    """Variables have their default."""
    item: dict[str, Any] = {"get": {}}
    if of_path is not None:
        item["servers"] = of_path
    if of_operation is not None:
        item["get"]["servers"] = of_operation

    assert operation(item, servers=servers).url == expected


@pytest.mark.parametrize(
    "server",
    [
        {},
        {"url": ""},
        {"url": "/v1"},
        {"url": "api.example.com"},
        {"url": "ftp://h"},
        {"url": "https://user:pass@h"},
        {"url": "https://h\\@evil.example"},
        {"url": "https://h?key=1"},
        {"url": "https://h#x"},
        {"url": "https://h /"},
        {"url": "https://{tenant}.h"},
        {"url": "https://{t}", "variables": {"t": {"default": "a@b"}}},
    ],
)
def test_an_unclear_server_stops_the_start(server: dict[str, Any]) -> None:
    """The operator names the address instead."""
    with pytest.raises(ValueError, match=r"url: set the server's address; the document names"):
        operation({"get": {}}, servers=[server])


@pytest.mark.parametrize(
    ("server", "is_sent"),
    [
        ({"url": "https://a/{v}", "variables": {"v": {"default": "v1"}}}, True),
        ({"url": "https://a:{p}", "variables": {"p": {"default": "81"}}}, True),
        (
            {"url": "https://{r}.h", "variables": {"r": {"default": "eu", "enum": ["eu", "us"]}}},
            True,
        ),
        (OPEN, False),
        ({"url": "https://{h}", "variables": {"h": {"default": "h"}}}, False),
        ({"url": "{base}/v1", "variables": {"base": {"default": "https://h"}}}, False),
        ({"url": "https://h{x}:81", "variables": {"x": {"default": ".example"}}}, False),
    ],
)
def test_headers_of_the_operator_need_a_known_host(server: dict[str, Any], is_sent: bool) -> None:
    """The default of an open variable may be the host of another customer of the API."""
    written = document({"get": {}}, servers=[server])

    def made_of(address: str | None) -> HttpOperation:
        return operation_of(written, "it", server=address, description=None, headers=["X-Key"])

    assert made_of("https://mine").url == "https://mine/x"
    if is_sent:
        assert made_of(None).url.startswith("https://")
    else:
        with pytest.raises(ValueError, match=r"headers_env is not sent to .* leaves the host open"):
            made_of(None)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            {"get": {"parameters": [{"name": "a", "in": "query", "style": "simple"}]}},
            "parameter 'a' has style 'simple'; in query, use form or",
        ),
        (
            {"get": {"parameters": [{"name": "a", "in": "header", "style": "form"}]}},
            "in header, use simple",
        ),
        (
            {"get": {"parameters": [{"name": "a", "in": "path", "style": "deepObject"}]}},
            "in path, use simple or label",
        ),
        (
            {"get": {"parameters": [{"name": "a", "in": "querystring"}]}},
            "parameter 'a' is in 'querystring', which is not",
        ),
        (
            {"post": {"requestBody": {"content": {"multipart/related": {}}}}},
            "operation_id: its body is multipart/related, which",
        ),
    ],
)
def test_what_cannot_be_sent_is_named(item: dict[str, Any], said: str) -> None:
    """The start stops with the parameter or the body at fault."""
    with pytest.raises(ValueError, match=said):
        operation(item)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("level", ["operation", "path"])
async def test_headers_go_to_the_server_of_the_operation_alone(
    api: Api, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the server of the document nor the target of a redirect receives a request."""
    other = Api()
    listening = await asyncio.start_server(other.talk, "127.0.0.1", 0)
    async with listening:
        elsewhere = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        item: dict[str, Any] = {"get": {}}
        (item["get"] if level == "operation" else item)["servers"] = [{"url": f"{api.url}/own"}]
        (tmp_path / "api.json").write_text(json.dumps(document(item, servers=[{"url": elsewhere}])))
        monkeypatch.setenv("THE_KEY", "a-secret-key")
        tool = http_tool(
            openapi=str(tmp_path / "api.json"), operation_id="it", headers_env={"X-Key": "THE_KEY"}
        )
        first = await run_tool(tool)
        api.answer = (
            f"HTTP/1.1 307 X\r\nLocation: {elsewhere}/x\r\nContent-Length: 0\r\n\r\n".encode()
        )
        second = await run_tool(tool)

    assert (first, second["code"]) == ({}, "redirect")
    assert [line for line, _, _ in api.requests] == ["GET /own/x HTTP/1.1"] * 2
    assert {headers["x-key"] for _, headers, _ in api.requests} == {"a-secret-key"}
    assert other.requests == []


YAML = """
openapi: 3.1.0
info: {title: T, version: 1.0}
servers: [{url: https://h}]
paths:
  /x:
    get:
      summary: It.
      operationId: it
      parameters:
        - {name: on, in: query, schema: {type: string, enum: [on, off, no], default: no}}
        - {name: day, in: query, schema: {type: string, example: 2025-01-31}}
        - {name: at, in: query, schema: {type: string, enum: [12:30, 0x1F]}}
      responses: {200: {description: OK}}
"""


async def test_a_document_in_yaml_has_the_values_of_yaml_1_2(tmp_path: Path) -> None:
    """Dates, times and ``no`` are text."""
    (tmp_path / "api.yaml").write_text(YAML)

    tool = http_tool(openapi=str(tmp_path / "api.yaml"), operation_id="it")

    properties = tool.spec.parameters["properties"]
    assert properties["on"] == {**TEXT, "enum": ["on", "off", "no"], "default": "no"}
    assert properties["day"]["example"] == "2025-01-31"
    assert properties["at"]["enum"] == ["12:30", "0x1F"]


async def test_an_operation_without_an_id_is_named_by_method_and_path(tmp_path: Path) -> None:
    """A wrong name lists the names."""
    written = {"openapi": "3.0.3", "servers": [{"url": "https://h"}]}
    paths = {"/a/{id}": {"get": {"summary": "It.", "parameters": [{"name": "id", "in": "path"}]}}}
    (tmp_path / "api.json").write_text(json.dumps({**written, "paths": paths}))

    tool = http_tool(openapi=str(tmp_path / "api.json"), operation_id="GET /a/{id}")
    assert tool.spec.parameters["required"] == ["id"]

    with pytest.raises(StartupError, match=r"no operation 'GET /a'.* Available: GET /a/{id}"):
        http_tool(openapi=str(tmp_path / "api.json"), operation_id="GET /a")


@pytest.mark.parametrize(
    "others",
    [
        {"x-owner": "widgets team"},
        {"x-owner": "get, post and delete"},
        {"x-tags": ["get"]},
        {"x-since": 2024},
        {"x-internal": None},
        {"x-group": {"get": {"operationId": "it", "summary": "No path."}}},
        {"/unused": None},
        {"/unused": {"summary": "Empty.", "get": None}},
        {"/unused": {"get": {"operationId": ["it"], "summary": "A list as ID."}}},
    ],
)
def test_only_paths_of_a_document_have_operations(others: dict[str, Any]) -> None:
    """Extensions may hold any value."""
    written = document({"get": {}})
    written["paths"] |= others

    made_of = operation_of(written, "it", server=None, description=None, headers=())

    assert made_of.url == "https://h/x"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"$ref": "#/components/pathItems/Base", "get": {}}, "https://h/x?limit=1"),
        ({"$ref": "#/components/pathItems/Alias", "get": {}}, "https://h/x?limit=1"),
        ({"$ref": "#/components/pathItems/Other", "get": {}}, "https://h/x?limit=1"),
        (
            {"$ref": "#/components/pathItems/Base", "get": {}, "servers": [{"url": "https://o"}]},
            "https://o/x?limit=1",
        ),
        (
            {
                "$ref": "#/components/pathItems/Base",
                "parameters": [{"name": "limit", "in": "query", "style": "deepObject"}],
                "get": {},
            },
            "https://h/x?limit=1",
        ),
        (
            {
                "$ref": "#/components/pathItems/Base",
                "get": {"parameters": [{"name": "limit", "in": "query"}]},
            },
            "https://h/x?limit=1",
        ),
    ],
)
def test_a_path_item_has_fields_beside_its_reference(item: dict[str, Any], expected: str) -> None:
    """Those of the target are added; the item's own take precedence."""
    limit = {"name": "limit", "in": "query", "schema": {}}
    items: dict[str, Any] = {
        "Base": {"parameters": [limit]},
        "Alias": {"$ref": "#/components/pathItems/Base"},
        "Other": {"parameters": [limit], "get": {"operationId": "other", "summary": "Other."}},
    }

    made_of = operation(item, components={"pathItems": items})

    assert made_of.request({"limit": 1})[0] == expected


def test_a_path_item_that_refers_to_itself_is_named() -> None:
    """The start stops with the reference at fault."""
    items = {"A": {"$ref": "#/components/pathItems/B"}, "B": {"$ref": "#/components/pathItems/A"}}

    with pytest.raises(ValueError, match=r"pathItems/A' refers to itself"):
        operation({"$ref": "#/components/pathItems/A"}, components={"pathItems": items})


@pytest.mark.parametrize(
    ("paths", "named"),
    [
        ({"/a": ["get", "post"]}, "GET /a and POST /a"),
        ({"/a": ["get"], "/b": ["get"]}, "GET /a and GET /b"),
        ({"/a": ["delete"], "/b": ["get", "patch"]}, "DELETE /a and GET /b and PATCH /b"),
        ({"/a/{id}": ["get"], "/a": ["get"]}, "GET /a/{id} and GET /a"),
        ({"/a": ["head", "put"]}, "HEAD /a and PUT /a"),
    ],
)
async def test_an_id_of_several_operations_stops_the_start(
    paths: dict[str, list[str]], named: str, tmp_path: Path
) -> None:
    """Which of them is meant is unclear."""
    one = {"operationId": "it", "summary": "It."}
    items = {path: dict.fromkeys(methods, one) for path, methods in paths.items()}
    (tmp_path / "api.json").write_text(json.dumps(document({}) | {"paths": items}))

    with pytest.raises(StartupError) as stop:
        http_tool(openapi=str(tmp_path / "api.json"), operation_id="it")

    assert f"operation_id: {named} have the ID 'it'" in str(stop.value)
    assert "\n" not in str(stop.value)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "file"}, "properties.v.type is not a type of JSON Schema"),
        ({"type": "array", "items": {"type": "any"}}, "properties.v.items.type is not a type"),
        ({"type": "object", "properties": {"type": {"type": "date"}}}, "properties.type.type is"),
        ({"type": "string", "pattern": "("}, "properties.v.pattern: "),
        ({"type": "number", "minimum": "1"}, "properties.v.minimum: "),
        ({"enum": "a"}, "properties.v.enum: "),
        ({"anyOf": []}, "properties.v.anyOf: "),
    ],
)
async def test_an_invalid_schema_stops_the_start_with_one_line(
    schema: Any, place: str, tmp_path: Path
) -> None:
    """The line names the keyword at fault."""
    parameter = {"name": "v", "in": "query", "schema": schema}
    written = document({"get": {"parameters": [parameter]}})
    (tmp_path / "api.json").write_text(json.dumps(written))

    with pytest.raises(StartupError) as stop:
        http_tool(openapi=str(tmp_path / "api.json"), operation_id="it")

    assert place in str(stop.value)
    assert "\n" not in str(stop.value)


READ_ONLY: dict[str, Any] = {
    "Id": {"type": "string", "readOnly": True},
    "Plain": {"type": "string"},
    "Base": {
        "type": "object",
        "properties": {"id": {"type": "string", "readOnly": True}, "w": {"type": "string"}},
    },
    "Needs": {"type": "object", "required": ["id", "w"]},
}


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize(
    "own",
    [
        {"allOf": [{"$ref": f"{SCHEMAS}/Id"}]},
        {"allOf": [{"description": "The ID."}, {"allOf": [{"$ref": f"{SCHEMAS}/Id"}]}]},
        {"anyOf": [{"type": "string", "readOnly": True}, {"type": "null"}]},
        {"anyOf": [{"$ref": f"{SCHEMAS}/Id"}, {"type": "null"}]},
        {"oneOf": [{"enum": [None]}, {"$ref": f"{SCHEMAS}/Id"}]},
        {"oneOf": [{"type": "string", "readOnly": True}, {"type": "integer", "readOnly": True}]},
        {"oneOf": [{"allOf": [{"$ref": f"{SCHEMAS}/Id"}]}, {"const": None}]},
    ],
)
def test_a_wrapped_read_only_property_is_no_argument(own: Any, is_flat: bool, version: str) -> None:
    """It is neither shown nor required, at the top of a body and inside of it."""
    whole = {"type": "object", "required": ["id", "w"], "properties": {"id": own, "w": TEXT}}
    schema = whole if is_flat else {"type": "object", "properties": {"v": whole}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    made_of = operation(
        {"post": {"requestBody": body}}, openapi=version, components={"schemas": READ_ONLY}
    )

    check = ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))

    assert check.problem({"w": "x"} if is_flat else {"v": {"w": "x"}}) is None
    shown = made_of.parameters if is_flat else made_of.parameters["properties"]["v"]
    assert list(shown["properties"]) == ["w"]


@pytest.mark.parametrize(
    "own",
    [
        {"anyOf": [{"$ref": f"{SCHEMAS}/Id"}, {"type": "string"}]},
        {"oneOf": [{"type": "null"}]},
        {"not": {"readOnly": True}},
        {"allOf": [{"$ref": f"{SCHEMAS}/Plain"}]},
        {"items": {"$ref": f"{SCHEMAS}/Id"}},
    ],
)
def test_a_property_that_requests_may_have_is_an_argument(own: Any) -> None:
    """A branch that requests may use is enough."""
    schema = {"type": "object", "required": ["id"], "properties": {"id": own}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    made_of = operation({"post": {"requestBody": body}}, components={"schemas": READ_ONLY})

    assert made_of.parameters["required"] == ["id"]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": f"{SCHEMAS}/Base"}, {"required": ["id", "w"]}]},
        {"allOf": [{"required": ["id", "w"]}, {"$ref": f"{SCHEMAS}/Base"}]},
        {"allOf": [{"$ref": f"{SCHEMAS}/Base"}, {"$ref": f"{SCHEMAS}/Needs"}]},
        {"allOf": [{"$ref": f"{SCHEMAS}/Base"}], "required": ["id", "w"]},
        {**READ_ONLY["Base"], "allOf": [{"$ref": f"{SCHEMAS}/Needs"}]},
        {"allOf": [{"allOf": [{"$ref": f"{SCHEMAS}/Base"}]}, {"allOf": [{"required": ["id"]}]}]},
        {"allOf": [{"$ref": f"{SCHEMAS}/Base"}, {"oneOf": [{"required": ["id", "w"]}]}]},
        {**READ_ONLY["Base"], "anyOf": [{"$ref": f"{SCHEMAS}/Needs"}, {"required": ["n"]}]},
        {"$ref": f"{SCHEMAS}/Base", "allOf": [{"required": ["id", "w"]}]},
    ],
)
@pytest.mark.parametrize("is_inner", [False, True])
def test_a_part_of_a_composed_schema_requires_no_read_only_property(
    schema: Any, is_inner: bool
) -> None:
    """The part that requires it need not be the one that names it read-only."""
    whole = {"type": "array", "items": schema} if is_inner else schema
    body = {"required": True, "content": {"application/json": {"schema": whole}}}
    made_of = operation({"post": {"requestBody": body}}, components={"schemas": READ_ONLY})
    check = ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))

    assert check.problem({"body": [{"w": "x"}] if is_inner else {"w": "x"}}) is None


def test_a_shared_schema_still_requires_what_is_not_read_only_elsewhere() -> None:
    """Each reference has the copy for its own read-only names."""
    parts = {
        "a": {"allOf": [{"$ref": f"{SCHEMAS}/Base"}, {"$ref": f"{SCHEMAS}/Needs"}]},
        "b": {"$ref": f"{SCHEMAS}/Needs"},
    }
    schema = {"type": "object", "properties": parts}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    made_of = operation({"post": {"requestBody": body}}, components={"schemas": READ_ONLY})
    check = ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))

    assert check.problem({"a": {"w": "x"}, "b": {"id": "i", "w": "x"}}) is None
    assert "'b.id' is missing" in str(check.problem({"b": {"w": "x"}}))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/Q"}}},
            {"a": 1},
            {"a": "x"},
        ),
        ({"type": "array", "items": {"$ref": "#/$defs/Q"}}, {"body": [1]}, {"body": ["x"]}),
        (
            {"allOf": [{"properties": {"a": {"$ref": "#/$defs/Q"}}}]},
            {"body": {"a": 1}},
            {"body": {"a": "x"}},
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#q"}}}, {"a": 1}, {"a": "x"}),
        ({"type": "object", "properties": {"a": {"$ref": "own#/$defs/Q"}}}, {"a": 1}, {"a": "x"}),
        ({"$ref": "#/$defs/O"}, {"a": 1}, {"a": "x"}),
        ({"$ref": "#/$defs/O", "required": ["a"]}, {"a": 1}, {}),
    ],
)
@pytest.mark.parametrize("kind", ["application/json", FORM, MULTIPART])
@pytest.mark.parametrize("is_referred", [False, True])
def test_a_body_with_an_id_is_its_own_resource(
    schema: dict[str, Any], valid: Any, invalid: Any, kind: str, is_referred: bool
) -> None:
    """Its references start at it, and not at the document."""
    definitions = {
        "Q": {"type": "integer", "$anchor": "q"},
        "O": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Q"}}},
    }
    whole = {"$id": "https://s/own", "$defs": definitions, **schema}
    given = {"$ref": f"{SCHEMAS}/Whole"} if is_referred else whole
    body = {"required": True, "content": {kind: {"schema": given}}}
    components = {"schemas": {"Whole": whole}} if is_referred else {}
    made_of = operation({"post": {"requestBody": body}}, components=components)
    check = ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))

    assert check.problem(valid) is None
    assert check.problem(invalid) is not None


@pytest.mark.parametrize(
    ("beside", "valid", "invalid"),
    [
        ({"properties": {"b": TEXT}}, {"a": "x", "b": "y"}, {"b": 1}),
        ({"properties": {"b": TEXT}, "required": ["b"]}, {"b": "y"}, {"a": "x"}),
        ({"required": ["a"]}, {"a": "x"}, {}),
        ({"properties": {"a": {"maxLength": 1}}}, {"body": {"a": "x"}}, {"body": {"a": "xx"}}),
        ({"properties": {"a": {"maxLength": 1}}}, {"body": {"a": "x"}}, {"body": {"a": 1}}),
        (
            {"allOf": [{"properties": {"b": TEXT}, "required": ["b"]}]},
            {"body": {"a": "x", "b": "y"}},
            {"body": {"a": "x"}},
        ),
        ({"oneOf": [{"required": ["a"]}]}, {"body": {"a": "x"}}, {"body": {}}),
        ({"properties": {"a": {"readOnly": True}, "b": TEXT}}, {"b": "y"}, {"a": "x", "b": "y"}),
    ],
)
@pytest.mark.parametrize("reference", ["Base", "Alias"])
def test_a_body_has_what_is_beside_its_reference(
    beside: dict[str, Any], valid: Any, invalid: Any, reference: str
) -> None:
    """OpenAPI 3.1 adds it to the target; 3.0 ignores it."""
    schemas = {
        "Base": {"type": "object", "properties": {"a": TEXT}},
        "Alias": {"$ref": f"{SCHEMAS}/Base", "description": "The same."},
    }
    schema = {"$ref": f"{SCHEMAS}/{reference}", **beside}
    item = {"post": {"requestBody": {"required": True, "content": {FORM: {"schema": schema}}}}}

    made_of = operation(item, components={"schemas": schemas})
    check = ArgumentCheck(ToolSpec(name="it", description="", parameters=made_of.parameters))
    assert check.problem(valid) is None
    assert check.problem(invalid) is not None
    assert made_of.request(valid)[2].startswith((b"a=x", b"b=y"))

    of_first = operation(item, openapi="3.0.3", components={"schemas": schemas})
    assert list(of_first.parameters["properties"]) == ["a"]
    assert of_first.parameters["required"] == []


URL = "data:image/png;base64,aGk="
PNG = {"contentType": "image/png"}


@pytest.mark.parametrize(
    ("schema", "encoding", "value", "parts"),
    [
        ({}, {}, URL, [("a", "a", "image/png", b"hi")]),
        (True, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({"description": "A file."}, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({}, PNG, URL, [("a", "a", "image/png", b"hi")]),
        ({}, {"contentType": "image/*"}, URL, [("a", "a", "image/png", b"hi")]),
        ({}, {"contentType": "application/pdf"}, URL, [("a", "a", "application/pdf", b"hi")]),
        (TEXT, PNG, URL, [("a", "a", "image/png", b"hi")]),
        ({"type": "string", "format": "byte"}, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({"type": "string", "format": "byte"}, PNG, URL, [("a", "a", "image/png", b"hi")]),
        ({"type": "string", "format": "base64"}, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({"type": "array", "items": {}}, {}, [URL, 1], "two"),
        ({"type": "array", "items": {}}, PNG, [URL], [("a", "a", "image/png", b"hi")]),
        ({"anyOf": [{}, {"type": "null"}]}, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({"allOf": [BINARY]}, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({"$ref": f"{SCHEMAS}/Byte"}, {}, URL, [("a", "a", "image/png", b"hi")]),
        ({"type": "string", "format": "byte"}, {}, "aGk=", [("a", None, None, b"aGk=")]),
        ({}, {}, "x", [("a", None, None, b"x")]),
        (TEXT, {}, URL, [("a", None, None, URL.encode())]),
        ({}, {"contentType": "text/plain"}, URL, [("a", None, "text/plain", URL.encode())]),
        ({"enum": [URL]}, {}, URL, [("a", None, None, URL.encode())]),
    ],
)
@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_a_data_url_is_a_file_where_a_part_may_hold_bytes(
    schema: Any, encoding: dict[str, Any], value: Any, parts: Any, version: str
) -> None:
    """Parts without a type, with Base64, or of a binary media type; other text stays text."""
    whole = {"type": "object", "properties": {"a": schema}}
    body = {"content": {MULTIPART: {"schema": whole, "encoding": {"a": encoding}}}}
    byte = {"type": "string", "format": "byte"}
    made_of = operation(
        {"post": {"requestBody": body}}, openapi=version, components={"schemas": {"Byte": byte}}
    )
    if parts == "two":
        parts = [("a", "a", "image/png", b"hi"), ("a", None, None, b"1")]

    assert parts_of(made_of, {"a": value}) == parts
    about = json.dumps(made_of.parameters)
    assert ("data URL" in about) == (parts[0][1] == "a" or value in ("aGk=", "x"))


@pytest.mark.parametrize("kind", ["text/plain", "text/csv", "application/xml"])
@pytest.mark.parametrize(
    ("charset", "text", "codec"),
    [
        ("iso-8859-1", "Köln", "iso-8859-1"),
        ("ISO-8859-1", "Köln", "iso-8859-1"),
        ("windows-1252", "5 €", "cp1252"),
        ("utf-8", "Köln", "utf-8"),
        ("utf-16", "Köln", "utf-16"),
        ("shift_jis", "東京", "shift_jis"),
        ("x-sjis", "東京", "cp932"),
        ("gb2312", "北京", "gb2312"),
        ("koi8-r", "Москва", "koi8-r"),
    ],
)
def test_a_text_is_sent_in_the_charset_of_its_media_type(
    charset: str, text: str, codec: str, kind: str
) -> None:
    """As a body, and as a part of one."""
    kind = f"{kind}; charset={charset}"

    sent = posting(kind, TEXT).request({"body": text})
    assert sent[1:] == ({"content-type": kind}, text.encode(codec))

    schema = {"type": "object", "properties": {"a": TEXT}}
    made_of = posting(MULTIPART, schema, encoding={"a": {"contentType": kind}})
    assert parts_of(made_of, {"a": text}) == [("a", None, kind, text.encode(codec))]


@pytest.mark.parametrize(
    ("charset", "text", "named"),
    [
        ("iso-8859-1", "5 €", "iso-8859-1 has no character U+20AC"),
        ("us-ascii", "Köln", "us-ascii has no character U+00F6"),
        ("koi8-r", "東京", "koi8-r has no character U+6771"),
        ("gb2312", "朱镕基", "gb2312 has no character U+9555"),
        ("windows-1252", "a😀", "windows-1252 has no character U+1F600"),
    ],
)
def test_a_character_that_the_charset_does_not_have_is_refused(
    charset: str, text: str, named: str
) -> None:
    """The model reads which one."""
    with pytest.raises(ToolRefusedError, match=re.escape(named)):
        posting(f"text/plain; charset={charset}", TEXT).request({"body": text})


@pytest.mark.parametrize("charset", ["x-unknown", "utf-9", "idna", "hex", "none"])
def test_an_unknown_charset_of_a_body_stops_the_start(charset: str) -> None:
    """The document names a charset that no text can have."""
    with pytest.raises(ValueError, match=f"operation_id: its body is .*the charset '{charset}'"):
        posting(f"text/plain; charset={charset}", TEXT)

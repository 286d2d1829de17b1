"""Answers of HTTP APIs as real servers send them: media types, encodings, blank bodies, secrets."""

import base64
import codecs
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from caseworker.tools.ports import Tool
from tests.unit.tools.http_support import CONTEXT, Api, http_tool, reply

CITY = {"city": "Köln"}
JSON = json.dumps(CITY, ensure_ascii=False)
HTML = "<html><head><meta charset='{0}'></head>Köln</html>"
XML = '<?xml version="1.0" encoding="{0}"?><a>Köln</a>'
JAPANESE = '{"city": "東京"}'
SECRET = "tok/en+1&2<3>"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def tool(api_server: Api) -> Tool:
    """Return a tool with a secret header; its client is made once, because that takes time."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("THE_TOKEN", SECRET)
        return http_tool(url=api_server.url, headers_env={"X-Key": "THE_TOKEN"})


def answers(text: str, *kinds: str, result: Any = None) -> list[tuple[str, bytes, Any]]:
    """Return a row for each media type, with one body and one result."""
    return [(kind, text.encode(), {"text": text} if result is None else result) for kind in kinds]


JSON_TYPES = answers(
    JSON,
    "application/json",
    "Application/JSON",
    "APPLICATION/JSON; Charset=UTF-8",
    'application/json;charset="utf-8"',
    "application/json ; odata.metadata=minimal",
    "application/json, application/json",
    "application/problem+json",
    "application/vnd.api+json; ext=bulk",
    "Application/Vnd.GitHub.V3+Json",
    "application/geo+json",
    "text/json",
    "text/x-json",
    result=CITY,
)
UNTYPED_JSON = answers(
    JSON,
    "application/octet-stream",
    "Application/Octet-Stream; charset=utf-8",
    "binary/octet-stream",
    "text/plain",
    "Text/Plain; charset=utf-8",
    "text/html; charset=utf-8",
    "",
    result=CITY,
)
TEXT_TYPES = [
    *answers("hello", "Text/Plain", "text/plain;charset=utf-8", "TEXT/HTML", "text/csv", ""),
    *answers("123", "text/plain", "text/html", ""),
    *answers("{no json}", "text/plain", "application/octet-stream", ""),
    *answers("<a/>", "application/xml", "Application/XML", "text/xml", "application/atom+xml"),
    *answers("<svg/>", "image/svg+xml", "application/soap+xml; charset=utf-8"),
    *answers(
        "a: 1\n",
        "application/yaml",
        "application/x-yaml",
        "application/vnd.yaml",
        "text/yaml",
        "text/x-yaml",
    ),
    *answers("openapi: 3.1.0\n", "application/vnd.oai.openapi+yaml;version=3.1"),
    *answers('{"a":1}\n{"a":2}\n', "application/x-ndjson", "application/jsonl", "text/plain"),
    *answers("a=1&b=2", "application/x-www-form-urlencoded"),
    *answers("let a = 1;", "application/javascript", "text/javascript"),
    *answers("Größe;1\n", "application/octet-stream"),
]


@pytest.mark.parametrize(("kind", "body", "result"), [*JSON_TYPES, *UNTYPED_JSON, *TEXT_TYPES])
async def test_media_types_are_compared_without_case_and_parameters(
    api: Api, tool: Tool, kind: str, body: bytes, result: Any
) -> None:
    """JSON is parsed, also where a server calls it text or bytes; XML and YAML are text."""
    api.answer = reply(body, 200, kind)

    assert await tool.run({}, CONTEXT) == result


@pytest.mark.parametrize(
    ("kind", "body", "result"),
    [
        ("application/json; charset=iso-8859-1", JSON.encode("latin-1"), CITY),
        ("application/json; charset=Windows-1252", JSON.encode("cp1252"), CITY),
        ("application/json; charset=utf-8", JSON.encode("latin-1"), CITY),
        ("application/json", JSON.encode("latin-1"), CITY),
        ("application/json; charset=iso-8859-1", JSON.encode(), CITY),
        ("application/json; charset=utf-16", JSON.encode("utf-16-be"), CITY),
        ("application/json; charset=UTF-16LE", JSON.encode("utf-16-le"), CITY),
        ("application/json; charset=shift_jis", JAPANESE.encode("shift_jis"), {"city": "東京"}),
        ("application/json; charset=iso-2022-jp", JAPANESE.encode("iso-2022-jp"), {"city": "東京"}),
        ("application/json; charset=GBK", JAPANESE.encode("gbk"), {"city": "東京"}),
        ("application/json; charset=none", JSON.encode(), CITY),
        ("application/json; charset=hex", JSON.encode(), CITY),
        ("application/json; charset=", JSON.encode("latin-1"), CITY),
        ("application/json", JSON.encode("utf-16-le"), CITY),
        ("text/plain; charset=iso-8859-1", "Köln".encode("latin-1"), {"text": "Köln"}),
        ("text/plain; charset=ISO-8859-15", "5 €".encode("iso-8859-15"), {"text": "5 €"}),
        ("text/plain; charset=koi8-r", "Москва".encode("koi8-r"), {"text": "Москва"}),
        ("text/plain; charset=big5", "台北".encode("big5"), {"text": "台北"}),
        ("text/plain; charset=us-ascii", "Köln".encode(), {"text": "Köln"}),
        ("text/plain; charset=idna", "Köln".encode(), {"text": "Köln"}),
        ("text/plain; charset=unicode_escape", b"\\u0041", {"text": "\\u0041"}),
        ("text/plain", "“Köln”".encode("cp1252"), {"text": "“Köln”"}),
        ("text/plain", "Köln ".encode() + b"\xff", {"text": "Köln \ufffd"}),
        ("application/xml", XML.format("ISO-8859-1").encode("latin-1"), None),
        ("text/xml; charset=utf-8", XML.format("ISO-8859-1").encode(), None),
        ("text/html", HTML.format("windows-1252").encode("cp1252"), None),
        ("text/html; charset=utf-8", HTML.format("utf-8").encode(), None),
    ],
)
async def test_a_body_is_read_in_its_character_encoding(
    api: Api, tool: Tool, kind: str, body: bytes, result: Any
) -> None:
    """The charset of the header, the document's own, or the one that the bytes show."""
    api.answer = reply(body, 200, kind)

    read = await tool.run({}, CONTEXT)

    if result is None:
        assert "Köln" in read["text"]
    else:
        assert read == result


@pytest.mark.parametrize("part", [";", "; ", ";=", ";a=b", ';a="b"', ";a*1=x"])
async def test_only_the_beginning_of_a_header_is_parsed(api: Api, tool: Tool, part: str) -> None:
    """The parser takes quadratic time for a header of many parts."""
    city = "Москва".encode("koi8-r")

    api.answer = reply(city, 200, "text/plain; charset=koi8-r" + part * 2000)
    assert await tool.run({}, CONTEXT) == {"text": "Москва"}
    api.answer = reply(city, 200, f"text/plain{part * 2000}; charset=koi8-r")
    assert await tool.run({}, CONTEXT) == {"text": city.decode("cp1252")}


MARKED = [
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
]


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=iso-8859-1", "text/plain", ""]
)
@pytest.mark.parametrize(("mark", "codec"), MARKED, ids=[codec for _, codec in MARKED])
async def test_a_byte_order_mark_names_the_encoding(
    api: Api, tool: Tool, mark: bytes, codec: str, kind: str, status: int
) -> None:
    """It precedes the charset of the header, and is no part of the text."""
    api.answer = reply(mark + JSON.encode(codec), status, kind)

    read = await tool.run({}, CONTEXT)

    assert read == CITY if status == 200 else read["error"] == f"The server answered 400: {JSON}"


@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize("body", [b"", b" ", b"\r\n", b"\n\t ", codecs.BOM_UTF8, b"\xff\xfe"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/pdf", ""])
async def test_a_blank_body_is_a_result_with_its_status(
    api: Api, tool: Tool, kind: str, body: bytes, status: int
) -> None:
    """Many APIs answer a change with nothing, whatever the media type is."""
    api.answer = reply(b"" if status == 204 else body, status, kind)

    assert await tool.run({}, CONTEXT) == {"status": status}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("application/json", b"{", "not valid JSON"),
        ("Application/Problem+JSON", b"no", "not valid JSON"),
        ("application/json", b'{"a": NaN}', "not valid JSON"),
        ("image/png", b"\x89PNG", "neither JSON nor text, but image/png"),
        ("Image/PNG; x=1", b"{}", "neither JSON nor text, but image/png"),
        ("application/pdf", b"%PDF", "neither JSON nor text, but application/pdf"),
        ("application/octet-stream", b"\x89PNG", "neither JSON nor text, but application/octet"),
        ("application/octet-stream", b"a\x00b", "neither JSON nor text, but application/octet"),
        ("multipart/mixed; boundary=a", b"--a--", "neither JSON nor text, but multipart/mixed"),
    ],
)
async def test_other_bodies_are_refused(
    api: Api, tool: Tool, kind: str, body: bytes, said: str
) -> None:
    """The message names the media type."""
    api.answer = reply(body, 200, kind)

    read = await tool.run({}, CONTEXT)

    assert read["code"] == "unfit_response"
    assert said in read["error"]


ECHOES = [
    ("application/json; charset=utf-16", json.dumps({"a": SECRET}).encode("utf-16")),
    ("application/json", json.dumps({SECRET: 1}).encode("utf-16-le")),
    ("Application/JSON", codecs.BOM_UTF8 + json.dumps([SECRET]).encode()),
    ("application/octet-stream", json.dumps({"a": [SECRET]}).encode()),
    ("application/octet-stream", f"key={SECRET}".encode()),
    ("text/plain", SECRET.encode("utf-16-be")),
    ("text/plain", "".join(f"{each}\x00" for each in f"a {SECRET}").encode()),
    ("text/plain; charset=cp037", SECRET.encode("cp037")),
    ("text/plain; charset=utf-7", SECRET.encode("utf-7")),
    ("text/plain", f"ö {SECRET}".encode("cp1252")),
    ("text/html", b"<meta charset=utf-7>" + SECRET.encode("utf-7")),
    ("application/x-yaml", f"key: '{SECRET}'\n".encode()),
    ("application/soap+xml", b"<a>tok/en+1&amp;2&lt;3&gt;</a>"),
    ("application/x-www-form-urlencoded", b"a=tok%2Fen%2B1%262%3C3%3E"),
    ("application/x-ndjson", json.dumps({"a": SECRET}).encode() + b"\n{}"),
    (f"application/{SECRET}", b"x"),
    ("application/json", b'{"a": "tok\\u0000/en+1&2<3>"}'),
    ("application/json", b'["tok\\uD800/en+1&2<3>"]'),
    ("application/vnd.x", b'["tok\\udc00/en+1&2<3>"]'),
]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(("kind", "body"), ECHOES)
async def test_no_media_type_or_encoding_shows_a_secret(
    api: Api, tool: Tool, kind: str, body: bytes, status: int
) -> None:
    """A header of the operator is masked in whatever way the server repeats it."""
    api.answer = reply(body, status, kind)

    read = await tool.run({}, CONTEXT)

    shown = json.dumps(read, ensure_ascii=False).replace("\\u0000", "").replace("\ufffd", "")
    assert "[secret]" in shown or kind.startswith("application/tok")
    for form in (SECRET, "tok/en", "en+1", "tok%2Fen"):
        assert form not in shown


TYPES = [
    "application/x-{}",
    "application/x-{}; charset=utf-8",
    "image/{}",
    "application/vnd.{}.zip",
    "audio/x; key={}",
]
TOKEN = "Tok3n/AbC+dEf;9,z"


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "change", [str, str.lower, lambda text: quote(text, safe=""), lambda text: quote(text).lower()]
)
async def test_no_media_type_shows_a_secret_in_another_case(
    api: Api, kind: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Media types are the same in lower case."""
    monkeypatch.setenv("OTHER_TOKEN", f"Bearer {TOKEN}")
    of_token = http_tool(url=api.url, headers_env={"X-Key": "OTHER_TOKEN"})
    api.answer = reply(b"\x00\x01\xff", 200, kind.format(change(TOKEN)))

    read = await of_token.run({}, CONTEXT)

    assert read["code"] == "unfit_response"
    assert not re.search("tok3n|abc|def", read["error"], re.IGNORECASE)


PASSWORD = "p\u00e4ssw\u00f6rd-\u20ac/\U0001f600secret"
PASSWORDS = [
    ("application/json", json.dumps({"you": PASSWORD})),
    ("application/json", json.dumps({PASSWORD: 1})),
    ("application/json", json.dumps({"you": json.dumps(json.dumps(json.dumps([PASSWORD])))})),
    ("text/plain", json.dumps({"you": PASSWORD})),
    ("text/plain", f"u={quote(PASSWORD, safe='')}"),
    ("text/html", PASSWORD.encode("ascii", "xmlcharrefreplace").decode()),
    ("application/xml", "".join(f"&#x{ord(each):x};" for each in PASSWORD)),
]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(("kind", "body"), PASSWORDS)
async def test_no_answer_shows_a_password_with_letters_outside_ascii(
    api: Api, kind: str, body: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server decodes the credentials of Basic, and escapes the password."""
    credentials = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
    monkeypatch.setenv("CREDENTIALS", f"Basic {credentials}")
    of_user = http_tool(url=api.url, headers_env={"Authorization": "CREDENTIALS"})
    api.answer = reply(body.encode(), status, kind)

    shown = json.dumps(await of_user.run({}, CONTEXT))

    assert "[secret]" in shown
    assert "secret" not in shown.replace("[secret]", "")


@pytest.mark.parametrize("before", [0, 400, 495, 5000])
async def test_the_start_of_a_long_error_is_shown_without_secrets(
    api: Api, tool: Tool, before: int
) -> None:
    """A secret at the end of the shown characters is masked before they are cut."""
    escaped = "".join(f"&amp;#{ord(each)};" for each in SECRET)
    api.answer = reply(f"{'a' * before}{escaped * 400}".encode(), 500, "text/html")

    read = await tool.run({}, CONTEXT)

    start = "The server answered 500: "
    assert read["error"] == start + ("a" * before + "[secret]" * 100)[:500]


NAMES = [
    ("gb2312", "朱镕基", "gb18030"),
    ("gbk", "㐀 €", "gb18030"),
    ("x-gbk", "镕", "gbk"),
    ("shift_jis", "①髙", "cp932"),
    ("x-sjis", "①髙", "cp932"),
    ("windows-31j", "①", "cp932"),
    ("euc-kr", "똠방각하", "cp949"),
    ("ks_c_5601-1987", "똠", "cp949"),
    ("big5", "香港嘅", "big5hkscs"),
    ("x-x-big5", "台北", "big5"),
    ("euc-jp", "①", "euc_jis_2004"),
    ("iso-8859-1", "“5 €”", "cp1252"),
    ("latin1", "“5 €”", "cp1252"),
    ("us-ascii", "5 €", "cp1252"),
    ("iso-8859-9", "€ ğ", "cp1254"),
    ("windows-874", "ไทย", "cp874"),
    ("tis-620", "€ ไทย", "cp874"),
    ("x-cp1250", "Łódź", "cp1250"),
    ("x-cp1251", "Москва", "cp1251"),
    ("x-mac-cyrillic", "Москва", "mac_cyrillic"),
    ("iso-8859-8-i", "שלום", "iso8859_8"),
    ("koi8-ru", "Київ", "koi8_u"),
    ("koi8-r", "Москва", "koi8_r"),
]


@pytest.mark.parametrize(("name", "text", "codec"), NAMES)
async def test_a_charset_means_what_browsers_make_of_it(
    api: Api, tool: Tool, name: str, text: str, codec: str
) -> None:
    """Many servers write the older name of a larger character set."""
    api.answer = reply(text.encode(codec), 200, f"text/plain; charset={name}")
    assert await tool.run({}, CONTEXT) == {"text": text}

    document = f"<meta charset='{name}'>{text}"
    api.answer = reply(document.encode(codec), 200, "text/html")
    assert await tool.run({}, CONTEXT) == {"text": document}


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/plain; charset=utf-16", b"Hello!", "Hello!"),
        ("text/plain; charset=utf-16le", b"Hello!", "Hello!"),
        ("text/plain; charset=utf-16be", "Köln!".encode(), "Köln!"),
        ("text/plain; charset=utf-32", b"Hello world!", "Hello world!"),
        ("text/plain; charset=ucs-2", b"Hello!", "Hello!"),
        ("text/xml", b'<?xml version="1.0" encoding="utf-16"?><a/>', None),
        ("text/plain; charset=utf-16", "東a".encode("utf-16-le"), "東a"),
        ("text/plain; charset=utf-16", "東a".encode("utf-16-be"), "東a"),
        ("text/plain; charset=utf-16le", "Hello".encode("utf-16-be"), "Hello"),
        ("text/plain; charset=utf-16", "東京都".encode("utf-16-le"), "東京都"),
        ("text/plain; charset=utf-32", "東京".encode("utf-32-le"), "東京"),
        ("application/json; charset=utf-16", '"東a"'.encode("utf-16-le"), "東a"),
    ],
)
async def test_utf_16_and_utf_32_need_bytes_that_fit(
    api: Api, tool: Tool, kind: str, body: bytes, text: str | None
) -> None:
    """Text in UTF-8 under such a name would become other characters."""
    api.answer = reply(body, 200, kind)

    read = await tool.run({}, CONTEXT)

    assert read.get("text", read.get("value")) == (text or body.decode())


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/html", "text/csv", ""])
@pytest.mark.parametrize("name", ["x-unknown", "none", "hex", "idna", "utf-9"])
async def test_an_unknown_charset_is_named_unless_the_body_is_utf_8(
    api: Api, tool: Tool, name: str, kind: str, status: int
) -> None:
    """It is never read as Windows-1252."""
    header = f"{kind}; charset={name}"
    api.answer = reply("Москва".encode("koi8-r"), status, header)
    read = await tool.run({}, CONTEXT)
    if status == 200:
        assert read == {
            "error": f"The charset '{name}' of the response is unknown.",
            "code": "unfit_response",
        }
    else:
        assert "\ufffd" in read["error"]

    api.answer = reply('["Москва"]'.encode(), status, header)
    assert "Москва" in json.dumps(await tool.run({}, CONTEXT), ensure_ascii=False)


async def test_one_broken_byte_does_not_change_the_charset(api: Api, tool: Tool) -> None:
    """Only that character is lost."""
    api.answer = reply("東京".encode("cp932") + b"\xff", 200, "text/plain; charset=shift_jis")

    read = await tool.run({}, CONTEXT)

    assert read["text"].startswith("東京")


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-amz-json-1.1",
        "application/json-rpc",
        "application/vnd.api.v1.json",
        "application/problem",
        "*/*",
        "json",
        "application/anything; charset=utf-8",
    ],
)
async def test_json_of_any_textual_type_is_parsed(api: Api, tool: Tool, kind: str) -> None:
    """The content decides, unless the media type is known to be binary."""
    api.answer = reply(JSON.encode(), 200, kind)

    assert await tool.run({}, CONTEXT) == CITY


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/jsonlines", '{"a":1}\n{"a":2}\n'),
        ("application/geo+json-seq", '\x1e{"a":1}\n\x1e{"a":2}\n'),
        ("application/sparql-query", "SELECT * {}"),
        ("application/text", "hello"),
        ("text", "hello"),
        ("application/vnd.example", "Köln"),
        ("*/*", "123"),
    ],
)
async def test_text_of_any_textual_type_is_text(api: Api, tool: Tool, kind: str, body: str) -> None:
    """Servers have many names for text."""
    api.answer = reply(body.encode(), 200, kind)

    assert await tool.run({}, CONTEXT) == {"text": body}


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b'{"a": "\\u0000"}', {"a": "\ufffd"}),
        (b'{"a\\u0000": 1}', {"a\ufffd": 1}),
        (b'{"a": "\\ud800"}', {"a": "\ufffd"}),
        (b'["\\udc00x"]', {"value": ["\ufffdx"]}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": 1e999}', {"a": None}),
        (b"-1e999", {"value": None}),
        (b"[1" + b"0" * 4999 + b"]", "too many digits"),
        (b"[" * 200 + b"]" * 200, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"{'a': 1}", "not valid JSON"),
        (b"[NaN]", "not valid JSON"),
    ],
)
async def test_json_that_cannot_be_stored_is_converted_or_named(
    api: Api, tool: Tool, body: bytes, result: Any
) -> None:
    """As in the results of functions, a number that is not finite is null."""
    api.answer = reply(body)

    read = await tool.run({}, CONTEXT)

    if isinstance(result, str):
        assert (read["code"], result in read["error"]) == ("unfit_response", True)
    else:
        assert read == result


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"{}"),
        ("gzip", b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9),
        ("GZIP", b"no"),
        ("deflate", b"\xff\xff"),
        ("gzip, gzip", b"{}"),
    ],
)
async def test_a_body_that_cannot_be_decompressed_is_named(
    api: Api, tool: Tool, encoding: str, body: bytes
) -> None:
    """The server was reached."""
    api.answer = reply(body, 200, "application/json", f"Content-Encoding: {encoding}")

    read = await tool.run({}, CONTEXT)

    assert read["code"] == "unfit_response"
    assert f"not valid in its content encoding ({encoding})" in read["error"]

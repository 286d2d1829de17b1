"""The maximum of a call: bounds of text, images, documents, references, choices and tools."""

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.engine.context import TokenRatio
from caseworker.models.client_bodies import read_body
from caseworker.models.families import UNKNOWN, family_of
from caseworker.models.fields.provider_tools import ProviderTool
from caseworker.models.fields.tables import TABLES
from caseworker.models.maximum import Content, content_of_body, content_of_request
from caseworker.models.ports import Message, ModelRequest, ToolDefinition
from caseworker.models.tokens import near_tokens

GPT, CLAUDE = family_of("gpt-5"), family_of("claude-sonnet-4-5")


def png(width: int, height: int, more: bytes = b"") -> str:
    """Return the beginning of a picture as base64."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + header + b"\0" * 8 + more).decode()


def pdf(pages: int, *, packed: bool = False) -> str:
    """Return a document as base64, with its pages in the open or packed."""
    objects = b"<< /Type /Page >>\n" * pages
    if packed:
        objects = b"<< /Type /ObjStm >>\nstream\n" + zlib.compress(objects) + b"\nendstream"
    return base64.b64encode(b"%PDF-1.5\n<< /Type /Pages >>\n" + objects).decode()


def document(whole: bytes) -> dict[str, Any]:
    """Return a block with a PDF document."""
    data = base64.b64encode(whole).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    return {"type": "document", "source": source}


def content(
    body: dict[str, Any],
    dialect: str = "chat_completions",
    references: Mapping[str, int | None] = MappingProxyType({}),
) -> Content:
    """Return the content of a body."""
    table, field = TABLES[dialect], "input" if dialect == "responses" else "messages"
    family = CLAUDE if dialect == "messages" else GPT
    parts = table.read(body, limits_spending=True)
    whole = replace(read_body(body, field, parts), references=references)
    return content_of_body(whole, family, largest_image_tokens=family.largest_image_tokens)


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    """Return a body of chat completions."""
    return {"model": "m", "messages": [{"role": "user", "content": [*parts]}], **fields}


def claude(*parts: Any, **fields: Any) -> dict[str, Any]:
    """Return a body of messages."""
    return {**chat(*parts, **fields), "max_tokens": 10}


def image_url(url: str) -> dict[str, Any]:
    """Return a part with an image."""
    return {"type": "image_url", "image_url": {"url": url}}


BARE = content(chat({"type": "text", "text": "hi"})).hard_tokens


@given(text=st.text())
def test_the_hard_bound_has_a_token_for_each_byte(text: str) -> None:
    """No tokenizer makes more tokens than bytes."""
    asked = ModelRequest(messages=(Message(role="user", content=text),))
    whole = content_of_request(asked, UNKNOWN)
    assert whole.hard_tokens >= len(text.encode("utf-8", "surrogatepass"))
    assert whole.near_tokens <= whole.hard_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 20, 201),
        ("def add(first, second):\n    return first + second\n" * 20, 240),
        ("今天天气怎么样" * 20, 80),
        ("Сегодня хорошая погода, и мы пошли гулять в парк. " * 20, 301),
    ],
)
def test_the_near_bound_of_usual_text_is_close_to_its_count(text: str, tokens: int) -> None:
    """The counts are those of o200k_base."""
    assert tokens <= near_tokens(text, GPT) <= tokens * 1.5


def test_random_characters_count_one_token_each() -> None:
    """Other text next to them does not lower their count."""
    random = base64.b64encode(bytes(range(256)) * 100).decode()
    assert near_tokens(random, GPT) == len(random)
    assert near_tokens("word " * 5_000 + random, GPT) > len(random)


def test_tools_and_schemas_are_part_of_the_prompt() -> None:
    """Both are sent, and the provider adds a frame for tools."""
    plain = ModelRequest(messages=(Message(role="user", content="x"),))
    tool = ToolDefinition(name="t", description="d" * 300, parameters={"type": "object"})
    schema = {"type": "object", "title": "t" * 300}
    for asked in (
        ModelRequest(messages=plain.messages, tools=(tool,)),
        ModelRequest(messages=plain.messages, json_schema=schema),
    ):
        more = content_of_request(asked, CLAUDE), content_of_request(plain, CLAUDE)
        assert more[0].hard_tokens >= more[1].hard_tokens + 300 + CLAUDE.tools_frame_tokens
        assert more[0].near_tokens > more[1].near_tokens + CLAUDE.tools_frame_tokens


@pytest.mark.req("cw/3.named")
@pytest.mark.parametrize(
    ("url", "tokens"),
    [
        ("https://example.com/picture.png", 1_445),
        (f"data:image/png;base64,{png(512, 512)}", 255),
        (f"data:image/png;base64,{png(1024, 1024)}", 765),
        (f"data:image/png;base64,{png(8, 8, b'x' * 1_000_000)}", 1_445),
        ("data:image/png;base64,AAAA", 1_445),
        ("data:image/svg+xml;base64,PHN2Zz4=", 1_445),
    ],
    ids=["named", "one tile", "four tiles", "contradicts its header", "no header", "vectors"],
)
def test_an_image_counts_by_the_rule_of_its_family(url: str, tokens: int) -> None:
    """An image that is only named, or that hides its size, counts as the largest one."""
    counted = content(chat(image_url(url), image_url(url)))
    assert 2 * tokens <= counted.hard_tokens - BARE <= 2 * tokens + 300
    assert counted.near_tokens >= 2 * tokens


@pytest.mark.req("cw/3.named")
@pytest.mark.parametrize("packed", [False, True])
def test_a_document_counts_its_bytes_and_an_image_for_each_page(packed: bool) -> None:
    """Providers read the text and a picture of each page. The text may be compressed."""
    counted = content(claude(document(base64.b64decode(pdf(20, packed=packed)))), "messages")
    near_tokens = 20 * CLAUDE.largest_image_tokens
    assert near_tokens < counted.near_tokens < near_tokens + CLAUDE.largest_image_tokens + 2_000
    assert counted.hard_tokens >= CLAUDE.context_tokens


@pytest.mark.req("cw/3.named")
def test_the_compressed_text_of_a_document_counts() -> None:
    """A page may hold a megabyte of text in a few thousand bytes."""
    text = b"BT (" + b"word " * 200_000 + b") Tj ET"
    page = b"<< /Filter /FlateDecode >>\nstream\n" + zlib.compress(text) + b"\nendstream endobj"
    whole = b"%PDF-1.5\n<< /Type /Page >>\n" + page
    assert len(whole) < 10_000
    counted = content(claude(document(whole)), "messages")
    assert counted.near_tokens > 200_000
    assert counted.hard_tokens >= CLAUDE.context_tokens


def packed_page(about: bytes, stream: bytes) -> bytes:
    """Return a PDF document with one page."""
    page = b"%PDF-1.5\n1 0 obj << /Type /Page >> endobj\n2 0 obj << " + about
    return page + b" >>\nstream\n" + stream + b"\nendstream endobj"


@pytest.mark.req("cw/3.named")
def test_the_text_of_a_document_cannot_hide_in_another_compression() -> None:
    """What cannot be unpacked fills the context window, and images are not unpacked."""
    text = zlib.compress(b"BT (" + b"word " * 200_000 + b") Tj ET")
    armored = base64.a85encode(text) + b"~>"
    flate, padding = b"/Filter /FlateDecode", b"/Length 5 " * 1_000
    hiding = [
        packed_page(b"/Filter [/ASCII85Decode /FlateDecode]", armored),
        packed_page(b"/Filter [/FlateDecode /FlateDecode]", zlib.compress(text)),
        packed_page(b"/Filter /LZWDecode", text),
        packed_page(b"/Filter /Fl#61teDecode", text),
        packed_page(flate + padding, text),
        packed_page(flate, b"encrypted"),
    ]
    for whole in hiding:
        assert content(claude(document(whole)), "messages").near_tokens > 200_000
    image = packed_page(b"/Subtype /Image /Filter /DCTDecode", b"x" * 3_000)
    assert content(claude(document(image)), "messages").near_tokens < 5_000


@pytest.mark.req("cw/3.named")
def test_only_plain_text_counts_its_bytes() -> None:
    """Office files are compressed, whatever type the client declares."""
    text = base64.b64encode(b"word " * 100).decode()
    packed = base64.b64encode(b"PK\3\4\24\0" + zlib.compress(b"word " * 100)).decode()
    for data, hard_tokens in ((text, 600), (packed, GPT.context_tokens)):
        file = {"file_data": f"data:text/plain;base64,{data}", "filename": "a.docx"}
        counted = content(chat({"type": "file", "file": file}))
        assert hard_tokens <= counted.hard_tokens <= hard_tokens + 300
        assert counted.near_tokens >= hard_tokens // 4


@pytest.mark.req("cw/3.named")
@pytest.mark.parametrize(
    "url",
    [" " * 30 + "https://e/x.pdf", "https:/e/x.pdf", "//e/x", "e.example/x", " data:text/plain,x"],
)
def test_an_address_in_another_form_is_no_data(url: str) -> None:
    """Servers trim addresses and add missing schemes."""
    named = {"type": "document", "source": {"type": "url", "url": url}}
    assert content(claude(named), "messages").hard_tokens >= CLAUDE.context_tokens


@pytest.mark.req("cw/3.named")
def test_a_picture_whose_frames_may_be_larger_counts_as_the_largest() -> None:
    """The header of a GIF does not bound its frames."""
    screen, frame = b"GIF89a\x01\0\x01\0\0\0\0", b",\0\0\0\0\xa0\x0f\xa0\x0f\0\x02\x02D\x01\0;"
    data = base64.b64encode(screen + frame).decode()
    counted = content(chat(image_url(f"data:image/gif;base64,{data}")))
    assert counted.hard_tokens >= GPT.largest_image_tokens


@pytest.mark.req("cw/3.named")
def test_a_picture_counts_by_its_first_frame_header() -> None:
    """Bytes that look like a smaller header follow it."""
    frames = [b"\xff\xc0\0\x11\x08" + struct.pack(">HH", side, side) for side in (4_000, 8)]
    jpeg = b"\xff\xd8" + b"".join(frame + b"\x03" + bytes(9) for frame in frames) + bytes(50)
    data = base64.b64encode(jpeg).decode()
    source = {"type": "base64", "media_type": "image/jpeg", "data": data}
    counted = content(claude({"type": "image", "source": source}), "messages")
    assert counted.media.hard >= CLAUDE.largest_image_tokens


@pytest.mark.req("cw/3.named")
@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (base64.b64encode(b"RIFF\0\0\0\0WAVE" + bytes(20_000)).decode(), 1_000),
        (base64.b64encode(b"fLaC" + bytes(2_000)).decode(), GPT.context_tokens),
        ("https://e/x.wav", GPT.context_tokens),
    ],
    ids=["wav", "flac", "named"],
)
def test_a_sound_counts_at_the_price_of_sound(data: str, tokens: int) -> None:
    """Silence has almost no bytes in some formats, so that the context window bounds them."""
    counted = content(chat({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}))
    assert tokens <= counted.audio_tokens <= tokens + 300
    assert counted.hard_tokens >= counted.audio_tokens
    assert counted.usage(counted.hard_tokens, 1).tokens_audio_in == counted.audio_tokens


@pytest.mark.req("cw/3.named")
def test_a_document_with_very_many_streams_fills_the_context() -> None:
    """To unpack them would take long."""
    streams = b"<< /ObjStm >> stream\n" + zlib.compress(b"x") + b"endstream endobj\n"
    counted = content(claude(document(b"%PDF-1.5 /Type /Page " + streams * 20_000)), "messages")
    assert counted.near_tokens >= CLAUDE.context_tokens


@pytest.mark.req("cw/3.named")
@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("messages", claude({"type": "document", "source": {"type": "url", "url": "https://e/x"}})),
        (
            "responses",
            {
                "model": "m",
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_file", "file_url": "https://e/x.pdf"}],
                    }
                ],
            },
        ),
        ("responses", {"model": "m", "input": "go on", "previous_response_id": "resp_1"}),
    ],
    ids=["document", "file", "reply without stored tokens"],
)
def test_what_only_the_provider_can_measure_fills_the_context(
    dialect: str, body: dict[str, Any]
) -> None:
    """A body that names a document costs at most the context window."""
    counted = content(body, dialect)
    assert counted.near_tokens == counted.hard_tokens == counted.family.context_tokens


@pytest.mark.req("cw/3.named")
def test_a_reference_counts_the_recorded_tokens_of_its_reply() -> None:
    """The provider reads the earlier prompt and the earlier answer again."""
    body = {"model": "m", "input": "go on", "previous_response_id": "resp_1"}
    counted = content(body, "responses", references={"resp_1": 12_345})
    bare = content({"model": "m", "input": "go on"}, "responses")
    assert 12_345 <= counted.hard_tokens - bare.hard_tokens <= 12_400


@pytest.mark.parametrize("number", [0, 1, 3])
def test_each_compaction_reads_the_prompt_again(number: int) -> None:
    """A body may ask for several."""
    triggers = [{"type": "compaction_trigger"}] * number
    said = {"role": "user", "content": "hi"}
    assert content({"model": "m", "input": [said, *triggers]}, "responses").passes == 1 + number


def test_tools_that_the_provider_describes_cost_more_than_their_text() -> None:
    """Anthropic adds 735 and 499 tokens for the computer, 700 for the editor, 245 for the shell."""
    computer = {"type": "computer_20250124", "name": "computer"}
    others = {"text_editor_20250728": "str_replace_based_edit_tool", "bash_20250124": "bash"}
    tools = [computer, *({"type": kind, "name": name} for kind, name in others.items())]
    function = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    text = {"type": "text", "text": "hi"}
    one = content(claude(text, tools=[function]), "messages")
    all_four = content(claude(text, tools=[function, *tools]), "messages")
    assert all_four.near_tokens - one.near_tokens >= 735 + 499 + 700 + 245
    assert one.built_in_tools == 0


def test_provider_tools_and_compaction_are_part_of_the_maximum() -> None:
    """Each use adds tokens, and a compaction reads the prompt once more."""
    body = chat({"type": "text", "text": "hi"})
    whole = read_body(body, "messages", ())
    tool = ProviderTool(
        name="web_search",
        place="tools[0]",
        max_uses=3,
        usd_per_use=Decimal("0.01"),
        tokens_per_use=1_000,
    )
    plain = content_of_body(whole, GPT, largest_image_tokens=1)
    assert plain.choices == plain.passes == 1
    with_tool = Content(**{**vars_of(plain), "tools": (tool,)})
    twice = Content(**{**vars_of(plain), "passes": 2})
    assert with_tool.hard_tokens == plain.hard_tokens + 3_000
    assert with_tool.usage(1, 1).provider_tool_uses == {"web_search": 3}
    assert twice.hard_tokens == 2 * plain.hard_tokens
    described = Content(**{**vars_of(with_tool), "built_in_tools": 1})
    assert described.hard_tokens == with_tool.hard_tokens + 1_250
    assert described.near_tokens - with_tool.near_tokens < 300, "the provider describes it briefly"


def vars_of(whole: Content) -> dict[str, Any]:
    """Return the fields of a content, without cached values."""
    return {name: getattr(whole, name) for name in Content.__dataclass_fields__}


@pytest.mark.req("cw/3.choices")
def test_choices_multiply() -> None:
    """`n` and `best_of` are answers that the provider writes for one request."""
    assert content(chat(n=3)).choices == 3
    assert content(chat(n=2, best_of=5)).choices == 10


def test_the_near_bound_follows_what_a_provider_counted_before() -> None:
    """It never rises above the bound of the text itself."""
    counted = content(chat({"type": "text", "text": "word " * 10_000}))
    near = counted.near_text_tokens
    assert counted.near_tokens_like(TokenRatio(0.5, near)) < counted.near_tokens * 0.6
    assert counted.near_tokens_like(TokenRatio(2.0, near)) == counted.near_tokens
    half_new = counted.near_tokens_like(TokenRatio(0.5, near // 2))
    assert half_new > counted.near_tokens * 0.7, "new text was not counted yet"


SIDES = (1, 100, 256, 512, 768, 1_024, 1_568, 2_048, 2_576, 4_096)


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-4.1-mini", "gpt-5", "gpt-5-mini", "gpt-5.2"),
        *("gpt-6", "o3", "claude-3-opus", "claude-opus-4-1", "claude-opus-5", "gemini-2.5-pro"),
        *("gemini-4", "gemma-3", "grok-4", "mistral-large-4", "pixtral", "qwen3-vl"),
    ],
)
def test_the_largest_image_of_a_family_is_the_largest_that_an_image_can_cost(model: str) -> None:
    """An image of unknown size reserves this number, so none may cost more."""
    family = family_of(model)
    assert family.image_tokens is not None
    sizes = [(width, height) for width in SIDES for height in SIDES if 1 / 4 <= width / height <= 4]
    costs = [family.image_tokens(*size) for size in sizes]

    assert family.largest_image_tokens / 2 <= max(costs) <= family.largest_image_tokens

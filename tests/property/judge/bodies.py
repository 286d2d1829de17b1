"""Draws request bodies: those of clients, and those of an attacker."""

import base64
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.property.judge.truth import CHAT, FAMILIES, MESSAGES, RESPONSES, Family

_VOCABULARY_TEXT: Final = """
account answer because before between business change children company country different during
every example family first follow found general government great group head history house
important interest just keep large last later letter little local long make many member might
money month morning mother move much name national never next night number office often order
other part people place point possible power present problem program public question quite
really reason report result right room school second service several should show side since
small social some still story student study system table their there thing think those three
through today together turn under until water week where which while white whole within without
woman word work world would write year young
"""
VOCABULARY: Final = re.findall(r"\w+", _VOCABULARY_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A request for one model."""

    path: str
    alias: str
    document: Mapping[str, Any]
    is_adversarial: bool
    """Whether its text is not ordinary, so that only the hard bound holds for it."""
    fields: tuple[str, ...]
    """Parts of the body that are not text."""


def ordinary_text(chance: Random, size: int) -> str:
    """Return that many common words."""
    return " ".join(chance.choices(VOCABULARY, k=size))


def adversarial_text(chance: Random, size: int) -> str:
    """Return text of up to one token a byte, of about that many bytes."""
    match chance.randrange(4):
        case 0:
            return "".join(chance.choices("😀🜁𝔘𓀀꧁", k=size // 4))
        case 1:
            return base64.b64encode(chance.randbytes(size * 3 // 4)).decode()
        case 2:
            return "".join(chr(chance.randrange(0x80, 0x2FFF)) for _ in range(size // 3))
        case _:
            return "".join(chance.choices(string.ascii_letters, k=size))


def png(chance: Random, width: int, height: int) -> bytes:
    """Return the head of a PNG of this size, and some bytes."""
    size = width.to_bytes(4) + height.to_bytes(4)
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + size + b"\x08\x02\x00\x00\x00"
    return head + chance.randbytes(chance.choice((10, 900, 3000)))


def jpeg(chance: Random, width: int, height: int) -> bytes:
    """Return a JPEG of this size, behind a thumbnail of another one."""
    thumb = b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x10\x00\x10" + bytes(10)
    first = b"\xff\xe1" + (len(thumb) + 2).to_bytes(2) + thumb
    frame = b"\xff\xc0\x00\x11\x08" + height.to_bytes(2) + width.to_bytes(2) + bytes(10)
    return b"\xff\xd8" + first + frame + chance.randbytes(chance.choice((10, 2000)))


def pdf(chance: Random) -> bytes:
    """Return something like a PDF, of a usual density or with as many pages as fit."""
    text = b"stream\n%s\nendstream"
    if chance.random() < 0.4:
        pages = b"<</Type/Page/Parent 1 0 R>>\n" * chance.choice((3, 20, 90))
        return b"%PDF-1.7\n" + pages + text % b""
    page = b"<</Type/Page/Parent 1 0 R>>\n" + chance.randbytes(8_000) + b"\n"
    content = ordinary_text(chance, chance.choice((20, 300))).encode()
    return b"%PDF-1.7\n" + page * chance.choice((1, 2)) + text % content


def drawn_body(chance: Random, marker: str, references: list[str]) -> Drawn:
    """Draw a body; ``references`` are the IDs of responses that its run has received."""
    paths = (RESPONSES,) if references and chance.random() < 0.4 else ()
    path = chance.choice(paths or (CHAT, CHAT, RESPONSES, MESSAGES))
    provider = "anthropic" if path == MESSAGES else "openai"
    families = [each for each in FAMILIES.values() if each.provider == provider and each.streams]
    return _Drawing(chance, marker, path, chance.choice(families), references).drawn()


class _Drawing:
    """Draws one body."""

    def __init__(
        self, chance: Random, marker: str, path: str, family: Family, references: list[str]
    ) -> None:
        self._chance = chance
        self._path = path
        self._family = family
        self._references = references
        self._fields: list[str] = []
        self._is_adversarial = chance.random() < 0.25
        self._marker = marker

    def drawn(self) -> Drawn:
        """Return the whole body."""
        chance, alias = self._chance, self._family.alias
        body: dict[str, Any] = {"model": alias}
        field = "input" if self._path == RESPONSES else "messages"
        body[field] = list(self._items())
        if chance.random() < 0.3:
            name = {CHAT: None, RESPONSES: "instructions", MESSAGES: "system"}[self._path]
            if name is not None:
                body[name] = self._text(30)
        if chance.random() < 0.7 or self._path == MESSAGES:
            names = {CHAT: ("max_tokens", "max_completion_tokens"), MESSAGES: ("max_tokens",)}
            name = chance.choice(names.get(self._path, ("max_output_tokens",)))
            body[name] = chance.choice((1, 30, 300, 1000, 3000))
        else:
            self._fields.append("no output limit")
        if chance.random() < 0.6:
            body["stream"] = True
            if self._path == CHAT and chance.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        body |= self._more()
        if chance.random() < 0.3:
            body |= self._free()
        return Drawn(
            path=self._path,
            alias=alias,
            document=body,
            is_adversarial=self._is_adversarial,
            fields=tuple(self._fields),
        )

    def _text(self, size: int) -> str:
        chance = self._chance
        size = chance.choice((1, size, 4 * size))
        text = ordinary_text(chance, size)
        if self._is_adversarial:
            text = f"{text} {adversarial_text(chance, 6 * size)}"
        return text

    def _items(self) -> Any:
        chance = self._chance
        roles = ["user", "assistant"] * chance.choice((0, 0, 1, 3))
        for role in roles:
            yield {"role": role, "content": self._text(40)}
        if chance.random() < 0.2:
            yield from self._tool_story()
        text = f"{self._marker} {self._text(60)}"
        parts = [part for part in self._parts() if part is not None]
        if not parts:
            yield {"role": "user", "content": text}
            return
        kind = "input_text" if self._path == RESPONSES else "text"
        first: dict[str, Any] = {"type": kind, "text": text}
        if self._path == MESSAGES and chance.random() < 0.4:
            lasts = chance.choice(({}, {"ttl": "1h"}, {"ttl": "5m"}))
            first["cache_control"] = {"type": "ephemeral", **lasts}
            self._fields.append("cache 1h" if "1h" in lasts.values() else "cache")
        yield {"role": "user", "content": [first, *parts]}

    def _tool_story(self) -> Any:
        args = f'{{"q": "{ordinary_text(self._chance, 10)}"}}'
        result = self._text(30)
        if self._path == CHAT:
            function = {"name": "look_up", "arguments": args}
            call = {"id": "call_0", "type": "function", "function": function}
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
            yield {"role": "tool", "tool_call_id": "call_0", "content": result}
        elif self._path == RESPONSES:
            call = {"type": "function_call", "call_id": "call_0", "name": "look_up"}
            yield {**call, "arguments": args}
            yield {"type": "function_call_output", "call_id": "call_0", "output": result}
        else:
            use = {"type": "tool_use", "id": "toolu_0", "name": "look_up", "input": {"q": "a"}}
            yield {"role": "assistant", "content": [use]}
            done = {"type": "tool_result", "tool_use_id": "toolu_0", "content": result}
            yield {"role": "user", "content": [done]}

    def _parts(self) -> Any:
        chance = self._chance
        if self._path == MESSAGES and chance.random() < 0.5:
            yield {"type": "text", "text": self._text(5)}
        for _ in range(chance.choice((0, 0, 0, 1, 1, 3))):
            yield self._image()
        if chance.random() < 0.12:
            yield self._document()

    def _image(self) -> dict[str, Any]:
        chance = self._chance
        width, height = chance.choice(((64, 64), (800, 600), (2048, 768), (4000, 4000)))
        detail = chance.choice(({}, {"detail": "low"}, {"detail": "high"}, {"detail": "auto"}))
        if chance.random() < 0.5:
            self._fields.append("image url")
            url, source = f"https://e.example/{width}x{height}.png", {"type": "url"}
            source["url"] = url
        else:
            self._fields.append("image data")
            kind, make = chance.choice((("png", png), ("jpeg", jpeg)))
            if chance.random() < 0.2:
                kind = "gif"
                self._fields.append("image of another type")
            data = base64.b64encode(make(chance, width, height)).decode()
            url = f"data:image/{kind};base64,{data}"
            source = {"type": "base64", "media_type": f"image/{kind}", "data": data}
        if self._path == CHAT:
            return {"type": "image_url", "image_url": {"url": url, **detail}}
        if self._path == RESPONSES:
            return {"type": "input_image", "image_url": url, **detail}
        return {"type": "image", "source": source}

    def _document(self) -> dict[str, Any] | None:
        chance = self._chance
        if chance.random() < 0.4 and self._path != CHAT:
            url = f"https://e.example/tokens-{chance.choice((500, 9_000, 150_000))}.pdf"
            self._fields.append("document url")
            if self._path == RESPONSES:
                return {"type": "input_file", "file_url": url}
            return {"type": "document", "source": {"type": "url", "url": url}}
        if self._path == MESSAGES and chance.random() < 0.4:
            self._fields.append("document text")
            source = {"type": "text", "media_type": "text/plain", "data": self._text(100)}
            return {"type": "document", "source": source}
        content = pdf(chance)
        pages = content.count(b"/Type/Page")
        self._fields.append("document pages" if pages > 2 else "document data")
        data = base64.b64encode(content).decode()
        if self._path == MESSAGES:
            source = {"type": "base64", "media_type": "application/pdf", "data": data}
            return {"type": "document", "source": source}
        file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}
        if self._path == CHAT:
            return {"type": "file", "file": file}
        return {"type": "input_file", **file}

    def _more(self) -> dict[str, Any]:
        """Return fields that cost something, each with a small probability."""
        chance, more = self._chance, dict[str, Any]()
        for field, share, draw in self._costly():
            if chance.random() < share:
                more |= draw()
                self._fields.append(field)
        return more

    def _costly(self) -> list[tuple[str, float, Callable[[], dict[str, Any]]]]:
        chance, chat, other = self._chance, self._path == CHAT, self._path
        known = self._references
        drawn: list[tuple[str, float, Callable[[], dict[str, Any]]]] = [
            ("tools", 0.2, lambda: {"tools": [self._tool(n) for n in range(2)]}),
            ("unknown field", 0.04, lambda: {chance.choice(("zap", "max_spend")): {"a": 1}}),
            ("tier", 0.03, lambda: {"service_tier": chance.choice(("priority", "default"))}),
        ]
        if chat:
            drawn += [
                ("choices", 0.25, lambda: {"n": chance.choice((2, 3, 8))}),
                ("best_of", 0.03, lambda: {"best_of": 6}),
                ("prediction", 0.03, self._prediction),
                ("other models", 0.02, lambda: {"models": ["openai/o1-pro"]}),
                ("search", 0.03, lambda: {"web_search_options": {}}),
                ("search parameters", 0.02, lambda: {"search_parameters": {"mode": "on"}}),
                ("extra body", 0.02, lambda: {"extra_body": {"zap": 1}}),
                ("effort", 0.1, lambda: {"reasoning_effort": "high"}),
            ]
        if other == RESPONSES:
            drawn += [
                ("search", 0.08, self._search),
                ("reference", 0.7 if known else 0.0, lambda: self._reference(known)),
                ("unknown id", 0.04, lambda: {"previous_response_id": "resp_of_nobody"}),
                ("stored prompt", 0.02, lambda: {"prompt": {"id": "pmpt_1"}}),
                ("provider tool", 0.03, lambda: {"tools": [_CODE]}),
                ("effort", 0.1, lambda: {"reasoning": {"effort": "high"}}),
            ]
        if other == MESSAGES:
            budget = chance.choice((1024, 1500))
            thinks = {"type": "enabled", "budget_tokens": budget}
            drawn += [
                ("thinking", 0.2, lambda: {"thinking": thinks, "max_tokens": 2 * budget}),
                ("search", 0.06, self._search),
                ("vendor tool", 0.08, lambda: {"tools": [{"type": _BASH, "name": "bash"}]}),
                ("fast", 0.02, lambda: {"speed": "fast"}),
            ]
        return drawn

    def _tool(self, number: int) -> dict[str, Any]:
        about = {"name": f"tool_{number}", "description": ordinary_text(self._chance, 20)}
        fields = {"q": {"type": "string", "description": ordinary_text(self._chance, 5)}}
        schema = {"type": "object", "properties": fields, "required": ["q"]}
        if self._path == MESSAGES:
            return {**about, "input_schema": schema}
        if self._path == RESPONSES:
            return {"type": "function", **about, "parameters": schema}
        return {"type": "function", "function": {**about, "parameters": schema}}

    def _search(self) -> dict[str, Any]:
        uses = self._chance.choice((None, 1, 3))
        if self._path == MESSAGES:
            limit = {} if uses is None else {"max_uses": uses}
            return {"tools": [{"type": "web_search_20250305", "name": "web_search", **limit}]}
        limit = {} if uses is None else {"max_tool_calls": uses}
        return {"tools": [{"type": "web_search"}], **limit}

    def _reference(self, known: list[str]) -> dict[str, Any]:
        return {"previous_response_id": self._chance.choice(known)}

    def _prediction(self) -> dict[str, Any]:
        content = ordinary_text(self._chance, 400)
        return {"prediction": {"type": "content", "content": content}}

    def _free(self) -> dict[str, Any]:
        self._fields.append("free field")
        if self._path == MESSAGES:
            return {"temperature": 0.5, "metadata": {"user_id": "u"}, "stop_sequences": ["END"]}
        if self._path == RESPONSES:
            return {"temperature": 0.5, "metadata": {"a": "b"}, "parallel_tool_calls": True}
        return {"temperature": 0.5, "user": "u", "seed": 7, "stop": ["END"]}


_BASH: Final = "bash_20250124"
_CODE: Final = {"type": "code_interpreter", "container": {"type": "auto"}}

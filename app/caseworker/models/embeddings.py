"""Calls that turn texts into vectors, and the form of their replies in the journal.

A reply may have 32 MB of vectors. They are cut out of its JSON text, so that the rest is parsed
like other replies. Each vector is read alone, so that other threads run in between. The client
receives the reply as it is. The journal stores packed floats: of 32 bits if they have the same
values, as in Base64, otherwise of 64 bits. A replayed reply has equal values in the same encoding.

A run records vectors up to a limit. A reply beyond it is not replayed: a later attempt makes the
call again, and is charged for it.
"""

import asyncio
import base64
import hashlib
import json
import re
import secrets
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, TypeVar

import orjson

from caseworker.engine.call import Reply
from caseworker.engine.ports import BULK
from caseworker.models.counts import embedding_usage
from caseworker.models.forms import storable_text
from caseworker.models.model_call import journaled, noted
from caseworker.models.ports import MAX_REPLY_BYTES, ModelReply, TokenUsage
from caseworker.models.relay import WIRE, Head, masked, returned, stored
from caseworker.models.relayed_call import LONG_REPLY_BYTES, RelayedCall
from caseworker.models.wires.endpoint import EndpointProvider
from caseworker.models.wires.failures import RAW_REPLY_BYTES, Failures, error_in, report_in
from caseworker.models.wires.transport import ReplyRefusedError, WireReply

VECTORS: Final = "vectors"
"""Field of a recorded reply with the form and the dimensions of its packed vectors."""

_VECTOR: Final = re.compile(rb'"embedding"\s*:\s*(\[[^\[\]"]*\]|"[A-Za-z0-9+/=]*")')
_FLOAT: Final = re.compile(rb"[.eE]")
_BASE64: Final = "base64"
_SINGLE: Final = "f"
_DOUBLE: Final = "d"
_DIGEST_BYTES: Final = 8
_RECORDED: Final = "recorded_embeddings_bytes"
"""Key in the state of a run with the size of its recorded vectors."""
_TOO_LONG: Final = (
    "the reply is compressed, or larger than limits.max_embeddings_kb: send fewer inputs at once"
)
_UNKNOWN: Final = "the reply is larger than 1 MiB, and its vectors have an unknown form"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The vectors of a reply as packed floats, all with the same number of dimensions."""

    form: str
    """``base64``: floats of 32 bits, which the reply has in Base64. ``f`` and ``d``: floats of 32
    and of 64 bits, which it has as numbers."""
    about: Mapping[str, Any]
    """Number of vectors, their dimensions and their digest, for the trace."""
    size_bytes: int
    bulk: str
    """The packed floats in Base64, for the journal."""

    @classmethod
    def read(cls, texts: Sequence[bytes]) -> "Vectors | None":
        """Return the vectors with these JSON texts; None if they have another form."""
        if all(text.startswith(b'"') for text in texts):
            form, rows = _BASE64, [_floats_in(text[1:-1]) for text in texts]
        else:
            numbers = [_numbers_in(text) for text in texts]
            singles = [None if row is None else _single(row) for row in numbers]
            form, rows = (_DOUBLE, numbers) if None in singles else (_SINGLE, singles)
        vectors = [row for row in rows if row]
        if len(vectors) != len(texts) or len(dimensions := {*map(len, vectors)}) != 1:
            return None
        content = b"".join(row.tobytes() for row in vectors)
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
        about = {"count": len(texts), "dimensions": dimensions.pop(), "digest": digest}
        bulk = base64.b64encode(content).decode("ascii")
        return cls(form=form, about=about, size_bytes=len(content), bulk=bulk)


def _texts_of(content: bytes, *, form: str, dimensions: int) -> Iterator[bytes]:
    """Yield the JSON text of each packed vector."""
    size = dimensions * (8 if form == _DOUBLE else 4)
    for at in range(0, len(content), size):
        packed = content[at : at + size]
        if form == _BASE64:
            yield b'"%s"' % base64.b64encode(packed)
        else:
            yield orjson.dumps(array(form, packed).tolist())


def _floats_in(text: bytes) -> "array[float] | None":
    """Return the 32-bit floats in a text in Base64; None if there are none."""
    try:
        content = base64.b64decode(text, validate=True)
        floats = array(_SINGLE, content)
    except ValueError:
        return None
    return floats if base64.b64encode(content) == text else None


def _numbers_in(text: bytes) -> "array[float] | None":
    """Return the numbers in a JSON list; None if all are whole, or one is no number."""
    try:
        return array(_DOUBLE, orjson.loads(text)) if _FLOAT.search(text) else None
    except (ValueError, TypeError, OverflowError):
        return None


def _single(numbers: "array[float]") -> "array[float] | None":
    """Return the numbers as 32-bit floats; None if they have other values then."""
    single = array(_SINGLE, numbers)
    return single if array(_DOUBLE, single) == numbers else None


@dataclass(frozen=True, slots=True)
class SplitReply:
    """The text of a reply without its vectors, and the vectors."""

    rest: bytes
    """The text with ``mark``, which is a JSON string, for each vector."""
    mark: bytes
    texts: Sequence[bytes]

    @classmethod
    def of(cls, content: bytes) -> "SplitReply":
        """Cut the vectors out of a reply."""
        mark = b'"%s"' % secrets.token_hex(16).encode()
        texts, between, end = list[bytes](), list[bytes](), 0
        for match in _VECTOR.finditer(content):
            between.append(content[end : match.start(1)])
            texts.append(match[1])
            end = match.end(1)
        return cls(mark.join((*between, content[end:])), mark, texts)

    def document(self) -> Any:
        """Return the JSON document, with None for each vector of an item; None if it is unusual.

        Raises:
            ValueError: it is not JSON.
        """
        document, mark = json.loads(self.rest), self.mark[1:-1].decode()
        items = document.get("data") if isinstance(document, dict) else None
        if not isinstance(items, list) or not 0 < len(items) == len(self.texts):
            return None
        if not all(isinstance(each, dict) and each.get("embedding") == mark for each in items):
            return None
        return {**document, "data": [{**each, "embedding": None} for each in items]}


def joined(rest: bytes, mark: bytes, texts: Iterator[bytes]) -> bytes:
    """Return a text with the text of a vector for each mark."""
    first, *later = rest.split(mark)
    return b"".join((first, *chain.from_iterable(zip(texts, later, strict=True))))


def replayed(value: Mapping[str, Any]) -> Head:
    """Return the reply with vectors that a journal value holds; the values are those of it."""
    wire, mark = value[WIRE], b'"%s"' % secrets.token_hex(16).encode()
    document = orjson.loads(zlib.decompress(base64.b64decode(wire["packed"])))
    texts = _texts_of(base64.b64decode(value[BULK]), **wire[VECTORS])
    for item in document["data"]:
        item["embedding"] = mark[1:-1].decode()
    content = joined(orjson.dumps(document), mark, texts)
    return Head(HTTPStatus.OK, {"content-type": storable_text(wire["content_type"])}, content)


@dataclass(kw_only=True, eq=False)
class EmbeddingsCall(RelayedCall):
    """One request of a client for vectors, which are never streamed."""

    max_recorded_bytes: int
    """Maximum size of the vectors that a run records."""

    async def _passed_on(
        self, provider: EndpointProvider, reply: WireReply, failures: Failures
    ) -> Reply:
        """Pass a successful reply on, and return its journal value and its usage."""
        try:
            async with aclosing(reply.parts()) as parts:
                content = b"".join([part async for part in parts])
        except ReplyRefusedError:
            raise self._failed(failures.error(_TOO_LONG, retryable=False), 1) from None
        failures.raw += content[:RAW_REPLY_BYTES]
        split = await self._computed(lambda: SplitReply.of(content), content)
        if len(split.rest) > MAX_REPLY_BYTES:
            raise self._failed(failures.error(_UNKNOWN, retryable=False), 1)
        rest = await masked(split.rest, provider.mask)
        if rest != split.rest:
            split = SplitReply(rest, split.mark, split.texts)
            content = joined(rest, split.mark, iter(split.texts))
        document, vectors = split.document(), None
        if document is not None:
            vectors = await self._computed(lambda: Vectors.read(split.texts), content)
        if vectors is None:
            if len(content) > MAX_REPLY_BYTES:
                raise self._failed(failures.error(_UNKNOWN, retryable=False), 1)
            content = await masked(content, provider.mask)
            document = json.loads(content)
        if (error := error_in(document)) is not None:
            failed = failures.error(report_in(error).redacted_suffix, retryable=False)
            raise self._failed(failed, 1)
        head = Head(HTTPStatus.OK, returned(reply.headers, provider.mask), content)
        counted = embedding_usage(document)
        if vectors is None and counted is None:
            raise ValueError("The reply has neither vectors nor token counts.")
        model_reply = ModelReply(text="", model=self.chat_model.model, usage=counted)
        usage, spent = self._answered(model_reply)
        self.relay.hold(head)
        value = {
            **journaled(model_reply, usage, spent),
            **self._journal_fields(head, document, vectors),
        }
        about = {} if vectors is None else {"embeddings": vectors.about}
        return Reply(value, spent, {**noted(value, self.chat_model.model), **about})

    def _journal_fields(
        self, head: Head, document: Any, vectors: Vectors | None
    ) -> Mapping[str, Any]:
        """Return the fields of the journal value that hold the reply, if the run may record it."""
        if vectors is None:
            return {WIRE: {**stored(head), **self.made_in}}
        content_type = head.headers.get("content-type", "")
        wire: dict[str, Any] = {"content_type": content_type, **self.made_in}
        if not self._may_record(vectors.size_bytes):
            return {WIRE: wire}
        rest = replace(head, content=orjson.dumps(document))
        form = {"form": vectors.form, "dimensions": vectors.about["dimensions"]}
        return {WIRE: {**wire, **stored(rest), VECTORS: form}, BULK: vectors.bulk}

    def _may_record(self, size: int) -> bool:
        """Count vectors as recorded by the run, if they fit into its limit."""
        state = self.run.state
        if _RECORDED not in state:
            earlier = self.run.calls.journal.recorded_below("")
            state[_RECORDED] = sum(bulk_bytes(each.value) for each in earlier.values())
        if state[_RECORDED] + size > self.max_recorded_bytes:
            return False
        state[_RECORDED] += size
        return True

    async def _computed(self, compute: Callable[[], T], content: bytes) -> T:
        """Return the result of a computation, which runs in a thread for long content."""
        if len(content) <= LONG_REPLY_BYTES:
            return compute()
        return await asyncio.to_thread(compute)

    def _note_ratio(self, usage: TokenUsage) -> None:
        """Do nothing, because the texts of one call say nothing about those of the next one."""


def bulk_bytes(value: Any) -> int:
    """Return the size of the packed vectors in a journal value."""
    bulk = value.get(BULK, "") if isinstance(value, dict) else ""
    return len(bulk) // 4 * 3 - bulk.count("=", -2)

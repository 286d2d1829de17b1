"""Tools that call HTTP APIs: a call is one request to an address that the operator configures."""

import asyncio
import codecs
import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx2

from caseworker.core.trace.frozen_json import ValueTooLargeError
from caseworker.platform.logs.secret_mask import SecretMask
from caseworker.platform.logs.trace_context import HEADER, current_traceparent
from caseworker.platform.retry_after import retry_after_seconds
from caseworker.platform.signing import signed_headers
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.http_request import HttpOperation
from caseworker.tools.media_types import (
    UnknownCharsetError,
    decoded,
    essence,
    is_binary_type,
    is_json_type,
    is_text,
)
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec, failure
from caseworker.tools.resources import ToolResources
from caseworker.tools.results import UnfitResultError, tool_result_of

UNAVAILABLE: Final = "unavailable"
"""Error code for a server that is unreachable, or asks to be called again later."""
_TRANSIENT: Final = frozenset({429, 503})
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_BYTES: Final = "application/octet-stream"
_EXCERPT_CHARS: Final = 500
_SPLITTING: Final = re.compile(r"\x00|\\u(?:0000|d[89a-f][0-9a-f]{2})", re.I)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class HttpTool:
    """A tool that sends a request and returns the response."""

    checks_formats = True
    """The server decides which dates and times, for example, are valid."""
    records_code = True

    def __init__(
        self,
        name: str,
        operation: HttpOperation,
        settings: Any,
        environ: Mapping[str, str],
        resources: ToolResources,
    ) -> None:
        """Create the tool; ``settings`` are those of the tool, from ``tools.http``.

        Raises:
            ValueError: an environment variable or the schema of the arguments is unusable.
        """
        safe, idempotent = operation.method in _IDEMPOTENT, settings.idempotent
        repeatable = safe if idempotent is None else idempotent
        self.spec = ToolSpec(
            name=name,
            description=operation.description,
            parameters=operation.parameters,
            external=True,
            idempotent=repeatable,
            parallel_safe=repeatable,
            transient=frozenset({UNAVAILABLE}),
            timeout_seconds=settings.timeout_seconds,
        )
        ArgumentCheck(self.spec)
        self._operation = operation
        self._max_bytes = settings.max_response_kb * 1024
        secret_name, names = settings.signing_secret_env, settings.headers_env
        variables = [name for name in (*names.values(), secret_name) if name is not None]
        values = {name: _value_of(name, environ) for name in variables}
        self._headers = {header.lower(): values[name] for header, name in names.items()}
        for variable in names.values():
            if not re.fullmatch("[ -~]+", values[variable]):
                raise ValueError(f"the environment variable {variable} has no value for a header")
        secrets = list(self._headers.values())
        self._mask = SecretMask(secrets)
        self._mask_of_types = SecretMask([*secrets, *map(str.lower, secrets)])
        self._secrets = [] if secret_name is None else [values[secret_name]]
        try:
            self._signature("", b"")
        except Exception:
            raise ValueError(f"{secret_name} must be a secret in base64, after whsec_") from None
        self._client = resources.shared(http_client)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Send the request and return the response.

        A JSON object is returned as it is, another JSON value under ``value``, text under ``text``;
        an empty body is only the ``status``. Each failure is an error result, with the code
        ``http_error``, ``redirect``, ``too_large``, ``unavailable``, ``unfit_response`` or
        ``invalid_arguments``.
        """
        url, request_headers, body = self._operation.request(args)
        headers = self._all_headers(request_headers, body, context)
        content = bytearray()
        try:
            async with self._client.stream(
                self._operation.method, url, headers=headers, content=body
            ) as response:
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > self._max_bytes:
                        break
        except (httpx2.InvalidURL, httpx2.LocalProtocolError, UnicodeError):
            message = "The arguments are too long, or not allowed in headers."
            return failure(message, "invalid_arguments")
        except httpx2.DecodingError:
            encoding = self._mask.apply(response.headers.get("content-encoding", ""))
            message = f"The response is not valid in its content encoding ({encoding})."
            return failure(message, "unfit_response")
        except (httpx2.HTTPError, OSError) as error:
            message = f"The server cannot be reached ({type(error).__name__})."
            return failure(message, UNAVAILABLE)
        return await asyncio.to_thread(self._result, response, content)  # parsing may take long

    def _all_headers(
        self, request_headers: Mapping[str, str], body: bytes, context: ToolContext
    ) -> dict[str, str]:
        key, span = context.call_key or uuid.uuid4().hex, current_traceparent()
        return {
            "accept": "application/json, */*;q=0.5",
            "accept-encoding": "identity",
            "idempotency-key": key,
            **({} if span is None else {HEADER: span}),
            **request_headers,
            **self._signature(key, body),
            **self._headers,
        }

    def _signature(self, key: str, body: bytes) -> dict[str, str]:
        at = datetime.now(UTC)
        signed = signed_headers(self._secrets, message_id=key, at=at, body=body)
        return signed if self._secrets else {}

    def _result(self, response: httpx2.Response, content: bytearray) -> ToolResult:
        status, header = response.status_code, response.headers.get("content-type", "")
        unread = ""
        try:
            text = decoded(content, header)
        except UnknownCharsetError as error:
            text, unread = content.decode(errors="replace"), error.charset
        if response.is_redirect:
            return failure(f"The server answered {status}. Redirects are not followed.", "redirect")
        if not response.is_success:
            excerpt = _storable(self._mask.excerpt(text, _EXCERPT_CHARS))
            message = f"The server answered {status}: {excerpt}".rstrip(": ")
            after = retry_after_seconds(response.headers.get("retry-after", ""))
            code = UNAVAILABLE if status in _TRANSIENT else "http_error"
            return failure(message, code, retry_after_seconds=after)
        if len(content) > self._max_bytes:
            message = f"The response has more than {self._max_bytes // 1024} KiB: ask for less."
            return failure(message, "too_large")
        text = _storable(self._mask.apply(text))
        if not text.strip():
            return {"status": status}
        if unread:
            message = f"The charset {self._mask.apply(unread)!r} of the response is unknown."
            return failure(message, "unfit_response")
        return self._result_of_text(essence(self._mask_of_types.apply(header)), content, text)

    def _result_of_text(self, kind: str, content: bytearray, text: str) -> ToolResult:
        """Return the result for a body of the media type ``kind``: a JSON value or a text."""
        is_document = is_json_type(kind)
        is_textual = is_text(kind) or not (is_binary_type(kind) and kind != _BYTES)
        if kind and not (is_document or is_text(kind)):
            is_textual = is_textual and _is_text_content(content, text)
        looks_like_json = text.lstrip().startswith(("{", "["))
        if is_document or (is_textual and looks_like_json):
            try:
                result: ToolResult = self._mask.apply_to(_json_result(text, self._max_bytes))
                return result
            except ValueError as error:
                if is_document:
                    return failure(f"The response {error}.", "unfit_response")
        if is_textual:
            return {"text": text}
        message = f"The response is neither JSON nor text, but {self._mask_of_types.apply(kind)}."
        return failure(message, "unfit_response")


def _value_of(variable: str, environ: Mapping[str, str]) -> str:
    if value := environ.get(variable, "").strip():
        return value
    raise ValueError(f"the environment variable {variable} is not set")


def _storable(text: str) -> str:
    """Return a text without the characters that the journal cannot store."""
    return _UNSTORABLE.sub("\ufffd", text)


def _json_result(text: str, max_bytes: int) -> ToolResult:
    """Return the result for a JSON text, converted as the results of functions are.

    Raises:
        ValueError: it is invalid, or too deep or long for the journal. The message is a predicate.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except json.JSONDecodeError:
        raise ValueError("is not valid JSON") from None
    except ValueError as error:
        reason = str(error) if str(error).startswith("is ") else "has a number of too many digits"
        raise ValueError(reason) from None
    try:
        value = tool_result_of({"": value}, max_bytes=max_bytes * 8)[""]
    except ValueTooLargeError:
        raise ValueError("is nested too deeply") from None
    except UnfitResultError:
        raise ValueError(
            "has an integer of too many digits, or two keys that are equal without NUL"
        ) from None
    # The key "error" could make the result a failure of the tool.
    return value if isinstance(value, dict) and "error" not in value else {"value": value}


def _no_constant(_: str) -> None:
    raise ValueError("is not valid JSON")


def _is_text_content(content: bytes | bytearray, text: str) -> bool:
    """Return whether a body of an unknown media type is text: UTF-8, or with an order mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return "\ufffd" not in text
    try:
        return b"\x00" not in content and bool(content.decode())
    except UnicodeDecodeError:
        return text.lstrip().startswith(("{", "[")) and "\ufffd" not in text


def http_client(_: ToolResources) -> httpx2.AsyncClient:
    """Return a client that keeps no cookies and no connections, and follows no redirects.

    It sets no limit on durations; the dispatcher limits each call.
    """
    return httpx2.AsyncClient(
        headers={"user-agent": "Caseworker"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        timeout=None,
        trust_env=False,
    )

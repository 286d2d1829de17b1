"""Tools that call HTTP APIs: each call is one request to an address that the operator configures.

An argument fills its own place in a request. It cannot change the host, the segments of the path,
or the names in the query. Servers decode ``%2F`` before they route a request, and normalize
``%2E%2E``, so encoding alone would not protect the path. Values with slashes are therefore
rejected, and so are segments that consist of dots.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urlencode, urlsplit

import httpx2

from caseworker.platform.logs.secret_mask import SecretMask
from caseworker.platform.logs.trace_context import HEADER, current_traceparent
from caseworker.platform.retry_after import seconds_asked
from caseworker.platform.signing import signed_headers
from caseworker.tools.arguments import ArgumentCheck, is_storable
from caseworker.tools.ports import ToolContext, ToolRefusedError, ToolResult, ToolSpec, failure
from caseworker.tools.resources import ToolResources

UNAVAILABLE: Final = "unavailable"
"""Error code for a server that is unreachable, or asks to be called again later."""
_TRANSIENT: Final = frozenset({429, 503})
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "DELETE"})
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_EXCERPT_CHARS: Final = 500
_PLACEHOLDER: Final = re.compile(r"\{([^{}/]+)\}")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

Place = Literal["path", "query", "header", "body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOperation:
    """A request whose arguments a model chooses."""

    method: str
    url: str
    """Address, with placeholders such as ``{order_id}`` in the path or the query."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments."""
    places: Mapping[str, tuple[Place, str]]
    """Place and name of each argument in the request; ``path`` is the whole URL, and an empty name
    the whole body."""
    description: str

    def __post_init__(self) -> None:
        """Check that the placeholders are required arguments, and not in the host.

        Raises:
            ValueError: one of them is not.
        """
        required = self.parameters.get("required", ())
        filled = {
            wire
            for place, wire in (self.places[name] for name in required if name in self.places)
            if place == "path"
        }
        if re.search("[{}]", urlsplit(self.url).netloc + _PLACEHOLDER.sub("", self.url)):
            raise ValueError("url: placeholders are {name}, in the path or the query only")
        for name in _PLACEHOLDER.findall(self.url):
            if name not in filled:
                known = ", ".join(required) or "none"
                raise ValueError(f"url: {{{name}}} is no required argument; those are: {known}")

    def request(self, args: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes]:
        """Return URL, headers and body for arguments; the body is empty if there is none.

        Raises:
            ToolRefusedError: a value could change the path.
        """
        at: dict[Place, dict[str, Any]] = {"path": {}, "query": {}, "header": {}, "body": {}}
        for name, value in args.items():
            place, wire = self.places[name]
            at[place][wire] = value

        def filled(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: quote(_text(at["path"][found[1]]), ""), text)

        path, _, query = self.url.partition("?")
        segments = path.split("/")
        for number, segment in enumerate(segments):
            segments[number] = filled(segment)
            plain = unquote(segments[number])
            if plain != segment and (set(plain) <= {"."} or re.search(r"[/\\]", plain)):
                raise ToolRefusedError(
                    f"{segment} may not be empty or dots, or contain a slash or a backslash."
                )
        pairs = [
            (name, [_text(each) for each in value] if isinstance(value, list) else _text(value))
            for name, value in at["query"].items()
            if value is not None
        ]
        query = "&".join(filter(None, (filled(query), urlencode(pairs, True, quote_via=quote))))
        sends = "body" in (place for place, _ in self.places.values())
        body = json.dumps(at["body"].get("", at["body"])).encode() if sends else b""
        headers = {name: _text(value) for name, value in at["header"].items()}
        return "/".join(segments) + (f"?{query}" if query else ""), headers, body


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def templated(
    method: str, url: str, parameters: Mapping[str, Any] | None, description: str
) -> HttpOperation:
    """Return an operation whose other arguments go to the query, or to a JSON body.

    Without ``parameters``, the placeholders are arguments of type string.
    """
    names = list(dict.fromkeys(_PLACEHOLDER.findall(url)))
    texts = {name: {"type": "string"} for name in names}
    schema = parameters or {"type": "object", "properties": texts, "required": names}
    rest: Place = "query" if method in _WITHOUT_BODY else "body"
    return HttpOperation(
        method=method,
        url=url,
        parameters={"type": "object", "additionalProperties": False, **schema},
        places={
            name: ("path" if name in names else rest, name) for name in schema.get("properties", {})
        },
        description=description,
    )


class HttpTool:
    """A tool that sends a request and returns the response."""

    checks_formats = True
    """The server decides which dates and times, for example, are valid."""

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
        for variable in (*settings.headers_env.values(), settings.signing_secret_env):
            if variable is not None and not environ.get(variable, "").strip():
                raise ValueError(f"the environment variable {variable} is not set")
        self._headers = {
            header.lower(): environ[variable].strip()
            for header, variable in settings.headers_env.items()
        }
        for variable in settings.headers_env.values():
            if not re.fullmatch("[ -~]+", environ[variable].strip()):
                raise ValueError(f"the environment variable {variable} has no value for a header")
        self._mask = SecretMask(self._headers.values())
        named = settings.signing_secret_env
        self._secrets = [] if named is None else [environ[named].strip()]
        try:
            self._signature("", b"")
        except Exception:
            raise ValueError(f"{named} must be a secret in base64, after whsec_") from None
        self._client = resources.shared(http_client)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Send the request and return the JSON object, ``value`` or ``text`` of the response."""
        url, given, body = self._operation.request(args)
        key, span = context.call_key or uuid.uuid4().hex, current_traceparent()
        headers = {
            "accept": "application/json, */*;q=0.5",
            "accept-encoding": "identity",
            "idempotency-key": key,
            **({"content-type": "application/json"} if body else {}),
            **({} if span is None else {HEADER: span}),
            **given,
            **self._signature(key, body),
            **self._headers,
        }
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
            said = "The arguments are too long, or not allowed in headers."
            return failure(said, "invalid_arguments")
        except (httpx2.HTTPError, OSError) as error:
            said = f"The server cannot be reached ({type(error).__name__})."
            return failure(said, UNAVAILABLE)
        return await asyncio.to_thread(self._result, response, content)  # parsing may take long

    def _signature(self, key: str, body: bytes) -> dict[str, str]:
        at = datetime.now(UTC)
        signed = signed_headers(self._secrets, message_id=key, at=at, body=body)
        return signed if self._secrets else {}

    def _result(self, response: httpx2.Response, content: bytearray) -> ToolResult:
        status = response.status_code
        kind = self._mask.apply(response.headers.get("content-type", ""))
        text = self._mask.apply(_UNSTORABLE.sub("\ufffd", content.decode(errors="replace")))
        if response.is_redirect:
            return failure(f"The server answered {status}. Redirects are not followed.", "redirect")
        if not response.is_success:
            said = f"The server answered {status}: {text[:_EXCERPT_CHARS]}".rstrip(": ")
            after = seconds_asked(response.headers.get("retry-after", ""))
            code = UNAVAILABLE if status in _TRANSIENT else "http_error"
            return failure(said, code, retry_after_seconds=after)
        if len(content) > self._max_bytes:
            said = f"The response has more than {self._max_bytes // 1024} KiB: ask for less."
            return failure(said, "too_large")
        if not content:
            return {"status": status}
        if "json" not in kind:
            if kind.startswith(("text/", "application/xml")) or not kind:
                return {"text": text}
            return failure(f"The response is neither JSON nor text, but {kind}.", "unfit_response")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = float("nan")
        if not is_storable({"": value}):
            return failure("The response is not valid JSON.", "unfit_response")
        # The key "error" could make the result a failure of the tool.
        return value if isinstance(value, dict) and "error" not in value else {"value": value}


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

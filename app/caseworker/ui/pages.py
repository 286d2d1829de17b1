"""Serve the run viewer: static files for the browser.

The files contain no data and need no authentication. They load data from the API with the user's
own credential, so a browser shows only what that user may read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from http import HTTPStatus
from importlib import resources
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from caseworker.platform.http.request import accepted_types

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Value of the Content-Security-Policy header. Scripts and styles load only from this origin and
are never inline. Images may also use ``blob:`` and ``data:`` URLs."""

_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)
"""Browsers may cache files but must revalidate them, so a new release is visible at once."""

_MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
)

_SHELL = "index.html"

_PAGES = (
    *("/ui", "/ui/", "/ui/overview", "/ui/runs", "/ui/runs/", "/ui/runs/{run_id}"),
    *("/ui/threads", "/ui/threads/{thread_id}", "/ui/tools", "/ui/models"),
    *("/ui/keys", "/ui/keys/{key_id}"),
    *("/ui/agents", "/ui/agents/{name}", "/ui/graphs", "/ui/graphs/{name}"),
    *("/ui/schedules", "/ui/quotas", "/ui/evaluations"),
)
"""URLs that return the viewer page; its script selects the view from the path."""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def viewer_routes() -> list[BaseRoute]:
    """Return the routes for the viewer. They must precede the API's trace route."""
    files = _files()
    shell = partial(_shell, template=files.pop(_SHELL).content.decode())
    return [
        *(Route(path, shell, include_in_schema=False) for path in _PAGES),
        Route("/ui/static/{name}", partial(_static, files=files), include_in_schema=False),
        _PageForBrowsers("/runs/{run_id}/trace", shell, include_in_schema=False),
        _PageForBrowsers("/ui/{path:path}", shell, include_in_schema=False),
    ]


def prefers_html(headers: Headers) -> bool:
    """Return whether the ``Accept`` header of a request ranks HTML above JSON.

    Browsers list HTML first. Clients that rank both equally, such as with ``*/*``, are programs.
    """
    html, json = (_quality(headers, kind) for kind in ("text/html", "application/json"))
    return html > json


class _PageForBrowsers(Route):
    """Serve the viewer page to clients that prefer HTML.

    It is used for the trace URL of a run, and for unknown paths, where it shows "Page not found".
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match = super().matches(scope)
        is_page = b"format=" not in scope["query_string"] and prefers_html(Headers(scope=scope))
        return match if match[0] is Match.FULL and is_page else (Match.NONE, {})


def _quality(headers: Headers, media_type: str) -> float:
    """Return the quality of a media type, from 0 to 1; the most specific range applies."""
    qualities = accepted_types(headers)
    ranges = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    return next((qualities[name] for name in ranges if name in qualities), 0.0)


def _files() -> dict[str, _File]:
    """Read all viewer files, by file name."""
    files_by_name = {}
    for file in (resources.files("caseworker.ui") / "static").iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        files_by_name[file.name] = _File(file.read_bytes(), _MEDIA_TYPES.get(suffix, "text/html"))
    return files_by_name


async def _shell(request: Request, *, template: str) -> Response:
    """Return the viewer page, with links relative to the ``root_path`` of the service."""
    root = escape(request.scope.get("root_path", ""), quote=True)
    page = _File(template.replace("{root}", root).encode(), "text/html")
    return _answer(request, page, Vary="Accept")


async def _static(request: Request, *, files: Mapping[str, _File]) -> Response:
    """Return a script, style sheet or image."""
    file = files.get(request.path_params["name"])
    if file is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return _answer(request, file)


def _answer(request: Request, file: _File, **more: str) -> Response:
    headers = {**_HEADERS, "ETag": file.tag, **more}
    known_tags = ",".join(request.headers.getlist("if-none-match"))
    tags = {tag.strip().removeprefix("W/") for tag in known_tags.split(",")}
    if file.tag in tags or "*" in tags:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)

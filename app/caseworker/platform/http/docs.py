"""Swagger UI at ``/docs``, with scripts from an installed package instead of a public host.

``/docs/extending.md`` is the page on writing tools, functions and providers.
"""

import base64
import hashlib
import json
import re
import sys
from functools import lru_cache
from importlib import resources
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from caseworker.platform.http.problems import ROUTE_NOT_FOUND, ProblemError
from caseworker.platform.http.request import ReadableRoute

router = APIRouter(include_in_schema=False, route_class=ReadableRoute)

_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document; it is generated once, in a thread."""
    root = request.scope.get("root_path", "").rstrip("/")
    state = request.app.state
    written: dict[str, bytes] = state.openapi_documents
    if root not in written:
        async with state.openapi_writing:
            if root not in written:
                written[root] = await run_in_threadpool(_written, request.app, root)
    return Response(written[root], media_type="application/json")


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Show the OpenAPI document; the page loads nothing from other hosts."""
    return _page(request.app.title)


@router.get("/docs/extending.md")
async def docs_extending() -> Response:
    """Return the page on writing tools, functions and providers."""
    content = _extending().read_bytes()
    return Response(content, media_type="text/markdown")


@router.get("/docs/{asset}")
async def docs_asset(asset: str) -> Response:
    """Return a script, style sheet or image of the page."""
    if asset not in _MEDIA_TYPES:
        raise ProblemError(ROUTE_NOT_FOUND)
    content = (resources.files("fastapi_swagger") / "resources" / asset).read_bytes()
    headers = {"Cache-Control": "public, max-age=86400"}
    return Response(content, media_type=_MEDIA_TYPES[asset], headers=headers)


def _written(app: FastAPI, root: str) -> bytes:
    servers = {"servers": [{"url": root}]} if root else {}
    return json.dumps({**app.openapi(), **servers}).encode()


def _extending() -> Path:
    """Return the path of the page in the source tree, or of its installed copy."""
    source = Path(__file__).parents[4] / "docs" / "extending.md"
    return source if source.exists() else Path(sys.prefix, "share", "caseworker", "extending.md")


@lru_cache(maxsize=1)
def _page(title: str) -> HTMLResponse:
    """Return the page; its URLs are relative, so it works below any path prefix."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon-32x32.png",
    )
    scripts = _INLINE_SCRIPT.findall(bytes(page.body).decode())
    page.headers["Content-Security-Policy"] = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {' '.join(map(_source, scripts))}",
            "style-src 'self' 'unsafe-inline'",  # Swagger UI sets inline styles
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return page


def _source(script: str) -> str:
    """Return the CSP hash source that allows an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"

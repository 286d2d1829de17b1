"""The page that documents the service."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.api.docs_page import CONTENT_SECURITY_POLICY, docs_page

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Show the OpenAPI document as a page that needs no other host."""
    headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
    return HTMLResponse(docs_page(request.app.openapi()), headers=headers)

"""The Allow header: every method of a resource, not only those of the first route that fits."""

from fastapi import Request


def allowed_methods(request: Request) -> str:
    """Return the methods of the resource that ``request`` names, as an Allow header."""
    segments = request.url.path.removeprefix(request.scope.get("root_path", "")).split("/")
    found = {
        method.upper()
        for template, operations in request.app.openapi()["paths"].items()
        if _fits(template.split("/"), segments)
        for method in operations
    }
    return ", ".join(sorted(found)) or "GET"


def _fits(template: list[str], segments: list[str]) -> bool:
    return len(template) == len(segments) and all(
        part.startswith("{") or part == segment
        for part, segment in zip(template, segments, strict=True)
    )

"""ASGI application factory, as in ``uvicorn --factory caseworker.main:create_app``.

It is imported on first use, because the command line imports modules of this package.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from caseworker.main.server import create_app

    return create_app

"""Python source as a tree."""

import ast


def parsed(source: str) -> ast.Module:
    """Parse source.

    Before Python 3.11.8, this may fail at random (https://github.com/python/cpython/issues/106905).
    """
    for _ in range(5):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)

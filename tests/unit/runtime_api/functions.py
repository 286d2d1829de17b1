"""Nodes that tests place in graphs."""

from typing import Any

from caseworker import FunctionNode


def constant(value: Any) -> FunctionNode:
    return FunctionNode(f"give {value}", lambda context: value)


def plus_one(name: str = "plus one") -> FunctionNode:
    return FunctionNode(name, lambda context: context.input + 1)

"""Holds the values that the steps of a graph pass on to the limits of their run.

A value is written once, when the step that made it ends, and its size is kept with it. What joins
values (a handle that several edges lead to, the results of a map, the result of a run) adds up
known sizes before anything is built from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from caseworker.engine.context import Outputs
from caseworker.trace.frozen_json import (
    FrozenJson,
    ValueLimits,
    ValueTooLargeError,
    freeze,
    too_large,
)

VALUE_KEY: Final = "limits.max_value_kb"
OUTPUTS_KEY: Final = "limits.max_outputs_kb"
RESULT_KEY: Final = "limits.max_result_kb"


@dataclass(slots=True)
class Total:
    """What the steps of one graph may produce together, and what is left of it."""

    left_bytes: int
    max_bytes: int
    key: str
    subject: str
    """What it is called in an error."""

    @classmethod
    def of_run(cls, limits: ValueLimits) -> "Total":
        """Return the limit of a run's result."""
        most = limits.max_result_bytes
        return cls(most, most, RESULT_KEY, "The result of the run")

    @classmethod
    def of_items(cls, limits: ValueLimits | None) -> "Total | None":
        """Return the limit of what a step makes of the items of a list, which is one value."""
        if limits is None:
            return None
        most = limits.max_value_bytes
        return cls(most, most, VALUE_KEY, "The list of results")

    def take(self, step_id: str, size: int) -> None:
        """Count what a step has produced.

        Raises:
            ValueTooLargeError: it is more than is left.
        """
        if size > self.left_bytes:
            error = too_large(self.max_bytes, self.key)
            raise ValueTooLargeError(f"{self.subject} {error}, with the outputs of step {step_id}.")
        self.left_bytes -= size


class StepValues:
    """The values of one execution of a graph."""

    __slots__ = ("_limits", "_total")

    def __init__(self, limits: ValueLimits, total: Total | None) -> None:
        self._limits = limits
        self._total = total

    def frozen(self, step_id: str, outputs: Outputs) -> dict[str, FrozenJson]:
        """Return the outputs of a step as they are stored, by handle.

        Raises:
            ValueTooLargeError: they pass a limit; the message names step, handle and limit.
            ValueError: one is not JSON.
        """
        written: dict[int, FrozenJson] = {}  # a router gives many handles one value
        frozen: dict[str, FrozenJson] = {}
        size = 0
        for handle, value in outputs.items():
            found = written.get(id(value))
            if found is None:
                found = written[id(value)] = self._written(step_id, handle, value)
            frozen[handle] = found
            size += found.size_bytes
            if size > self._limits.max_outputs_bytes:
                error = too_large(self._limits.max_outputs_bytes, OUTPUTS_KEY)
                raise ValueTooLargeError(f"What step {step_id} puts out {error}.")
        if self._total is not None:
            self._total.take(step_id, size)
        return frozen

    def _written(self, step_id: str, handle: str, value: Any) -> FrozenJson:
        limits = self._limits
        try:
            return freeze(
                value,
                max_bytes=limits.max_value_bytes,
                max_depth=limits.max_depth,
                key=VALUE_KEY,
            )
        except ValueTooLargeError as error:
            raise ValueTooLargeError(f"Output {handle} of step {step_id} {error}.") from None


def sizes_of(frozen: Mapping[str, FrozenJson]) -> dict[str, int]:
    """Return the bytes of frozen values, by handle."""
    return {handle: value.size_bytes for handle, value in frozen.items()}


def require_joined(step_id: str, handle: str, size: int, max_bytes: float) -> None:
    """Refuse a list of values on an input handle before anything is made of it.

    Raises:
        ValueTooLargeError: its parts come to more than one value may have.
    """
    if size > max_bytes:
        error = too_large(int(max_bytes), VALUE_KEY)
        raise ValueTooLargeError(f"What is joined on input {handle} of step {step_id} {error}.")

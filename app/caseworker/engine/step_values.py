"""Enforces the run's size limits on the outputs of steps.

A value is serialised once, when its step ends, and its size is stored with it. Values are combined
for an input handle with several edges, for a map step and for the result of a run. Their known
sizes are added up before the combined value is built.

See docs/internals.md, "How a graph is executed".
"""

from dataclasses import dataclass
from typing import Final

from caseworker.core.trace.frozen_json import (
    FrozenJson,
    ValueLimits,
    ValueTooLargeError,
    freeze,
    frozen_object,
    value_too_large_error,
)
from caseworker.engine.context import Outputs

VALUE_KEY: Final = "limits.max_value_kb"
OUTPUTS_KEY: Final = "limits.max_outputs_kb"
RESULT_KEY: Final = "limits.max_result_kb"


@dataclass(slots=True)
class Total:
    """The remaining size limit, in bytes, for the outputs of one graph; each step reduces it."""

    left_bytes: int
    max_bytes: int
    key: str
    subject: str
    """Start of the error message, such as "The result of the run"."""

    @classmethod
    def of_run(cls, limits: ValueLimits) -> "Total":
        """Return the limit for the result of a run."""
        limit = limits.max_result_bytes
        return cls(limit, limit, RESULT_KEY, "The result of the run")

    @classmethod
    def of_items(cls, limits: ValueLimits | None) -> "Total | None":
        """Return the limit for the result list of a map step, which counts as one value."""
        if limits is None:
            return None
        limit = limits.max_value_bytes
        return cls(limit, limit, VALUE_KEY, "The list of results")

    def exceeded_by(self, step_id: str) -> ValueTooLargeError:
        """Return the error for outputs of a step that are larger than the remaining limit."""
        error = value_too_large_error(self.max_bytes, self.key)
        return ValueTooLargeError(f"{self.subject} {error}, with the outputs of step {step_id}.")


@dataclass(frozen=True, slots=True)
class StepValues:
    """Serialises the outputs of the steps in one graph execution, and checks their sizes."""

    _limits: ValueLimits
    _total: Total | None

    def frozen(self, step_id: str, outputs: Outputs) -> tuple[FrozenJson, dict[str, int]]:
        """Serialise the outputs of a step as one object; return it, and their sizes in bytes.

        Raises:
            ValueTooLargeError: they exceed a limit; the message names the step and the limit.
            ValueError: a value is not JSON.
        """
        written: dict[int, FrozenJson] = {}  # by identity: a router puts one value on many handles
        frozen: dict[str, FrozenJson] = {}
        sizes: dict[str, int] = {}
        limits, size = self._limits, 0
        max_bytes, max_depth = limits.max_value_bytes, limits.max_depth
        for handle, value in outputs.items():
            json = written.get(id(value))
            if json is None:
                try:
                    json = freeze(value, max_bytes=max_bytes, max_depth=max_depth, key=VALUE_KEY)
                except ValueTooLargeError as error:
                    message = f"Output {handle} of step {step_id} {error}."
                    raise ValueTooLargeError(message) from None
                written[id(value)] = json
            frozen[handle] = json
            sizes[handle] = json.size_bytes
            size += json.size_bytes
            if size > limits.max_outputs_bytes:
                too_large = value_too_large_error(limits.max_outputs_bytes, OUTPUTS_KEY)
                raise ValueTooLargeError(f"The output of step {step_id} {too_large}.")
        if self._total is not None:
            if size > self._total.left_bytes:
                raise self._total.exceeded_by(step_id)
            self._total.left_bytes -= size
        return frozen_object(frozen), sizes


def require_joined(step_id: str, handle: str, size: int, max_bytes: float) -> None:
    """Check the size of a list of input values before it is built.

    Raises:
        ValueTooLargeError: the size exceeds the limit for one value.
    """
    if size > max_bytes:
        error = value_too_large_error(int(max_bytes), VALUE_KEY)
        raise ValueTooLargeError(f"The list of values on input {handle} of step {step_id} {error}.")

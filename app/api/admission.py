"""From what a caller sent to a run that can be stored: defaults, ceilings and what is hashed.

The hash tells whether a request that comes again under the same id or key is the same. It is made
of what the body means, so order, white space, and null for "left out" make no difference. The
``run_id`` is not in it (it says which run is meant, not what to run), and none of the service's
own defaults is: a request that is repeated after the configuration has changed is still the same.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from app.api.problem_types import INVALID_REQUEST
from app.api.problems import ProblemError
from app.api.run_body import BudgetBody, RunBody
from app.api.services import ApiLimits
from app.api.violations import Violation
from app.control.budget import Budget, money
from app.runs.run import NewRun, RunKey, RunKind, RunRequest
from app.runs.service import new_run_id
from app.tools.dispatch import ToolDispatch

_BUDGET_NAMES: Mapping[str, str] = MappingProxyType(
    {"max_seconds": "max_time_seconds", "max_cost_usd": "max_cost_dollars"}
)
"""Where the names of the HTTP API differ from those of seed 000."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Admission:
    """Turns bodies into runs, or says what is wrong with them."""

    def __init__(self, limits: ApiLimits, tools: ToolDispatch) -> None:
        self._limits = limits
        self._tools = tools
        self._usual = limits.default_budget.merged_with(limits.budget_ceiling)

    def new_run(self, body: RunBody, tenant: str, idempotency_key: str | None) -> NewRun:
        """Return the run that a body asks for.

        Raises:
            ProblemError: the body asks for what this service does not do; every field is named.
        """
        violations = list(self._violations(body))
        if violations:
            raise ProblemError(INVALID_REQUEST, violations=violations)
        return NewRun(
            key=RunKey(tenant, body.run_id or new_run_id()),
            request=self._request(body),
            request_hash=request_hash(body),
            idempotency_key=idempotency_key,
            named=body.run_id is not None,
            metadata=body.metadata or {},
        )

    def _request(self, body: RunBody) -> RunRequest:
        """Fill in the defaults of now: the run keeps them, whoever executes it and whenever."""
        limits = self._limits
        return RunRequest(
            kind=RunKind(body.kind),
            input=body.input,
            expected_tools=tuple(body.expected_tools or ()),
            gold_answer=body.gold_answer,
            mode=body.mode or limits.default_mode,
            budget=self._budget(body.budget),
            deadline=body.deadline,
            seed=limits.default_seed if body.seed is None else body.seed,
            timezone=body.timezone or limits.default_timezone,
        )

    def _budget(self, given: BudgetBody | None) -> Budget:
        """Replace the defaults key by key, null included; then apply the ceilings."""
        if given is None:
            return self._usual
        limits = {name: getattr(given, name) for name in given.model_fields_set}
        if limits.get("max_cost_usd") is not None:
            limits["max_cost_usd"] = money(limits["max_cost_usd"])
        named = {_BUDGET_NAMES.get(name, name): limit for name, limit in limits.items()}
        budget = replace(self._limits.default_budget, **named)
        return budget.merged_with(self._limits.budget_ceiling)

    def _violations(self, body: RunBody) -> Iterator[Violation]:
        longest = self._limits.max_input_chars
        if len(body.input) > longest:
            yield Violation(
                "input", f"The input may have at most {longest} characters (max_input_chars)."
            )
        if body.metadata and len(_json(body.metadata)) > self._limits.max_metadata_bytes:
            most = self._limits.max_metadata_bytes
            yield Violation("metadata", f"Metadata may take at most {most} bytes as JSON.")
        if body.expected_tools:
            usable = [spec.name for spec in self._tools.usable()]
            for index, name in enumerate(body.expected_tools):
                if name not in usable:
                    message = f"There is no such tool; there are: {', '.join(usable)}."
                    yield Violation(f"expected_tools.{index}", message)


def request_hash(body: RunBody) -> str:
    """Return the SHA-256 of what a body means."""
    fields: dict[str, Any] = body.model_dump(mode="json", exclude={"run_id", "budget"})
    if body.budget is not None:  # null is a limit of its own here: unlimited
        fields["budget"] = body.budget.model_dump(mode="json", exclude_unset=True)
    sent = {name: value for name, value in fields.items() if value not in (None, [], {})}
    return hashlib.sha256(_json(sent)).hexdigest()


def _json(value: Mapping[str, Any]) -> bytes:
    return _CANONICAL.encode(value).encode()

"""The reservation of a call: the answer of the paths that end with ``/reserve``."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from caseworker.core.budget.accounts import AccountLimit
from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.usage import BudgetExceededError, Charge
from caseworker.engine.call_maximum import Preview
from caseworker.features.external.session import GatewayRequest
from caseworker.gateway.refusals import Refusal, refusal_of
from caseworker.platform.http.bodies import View


class LimitView(View):
    """A limit of the run or of an account above it, and whether the call fits into it now."""

    scope: str
    """Name of the limit, as in the `stop` of a run: `run`, `run/child` for a child,
    `budget of the session`, `budget of the key, day`, `quota of the tenant, month`."""
    dimension: str
    """The limited quantity: `cost_usd` in US dollars, `tokens`, `llm_calls` or `api_calls`."""
    limit: int | float
    used: int | float
    reserved: int | float
    """Amount that calls in flight have reserved."""
    requested: int | float
    """Amount that this call would reserve."""
    admits: bool
    """Whether the call fits next to the used and reserved amounts."""
    reason: str | None
    """Why it does not fit; null if it does."""
    resets_at: datetime | None
    """Time at which the limit is renewed; null if it never is."""


class RefusalView(View):
    """The error that the call would get."""

    code: str
    message: str
    resets_at: datetime | None
    """Time from which the call may be admitted; null if waiting does not help."""


class VendorError(View):
    """An error in the form of the API that the request names."""

    error: dict[str, Any]
    """Message, type and code. For a limit that a period lifts, `resets_at` is the time."""
    type: Literal["error"] | None = None
    """Part of errors of the Anthropic API."""


class ReservationView(View):
    """The reservation that a model call with this body would make now. No call was made."""

    run_id: str | None
    """Run that would make the call; null if the call would open one."""
    model: str
    """The provider's name of the model."""
    alias: str
    """The configured name of the model."""
    provider: str
    cost_usd: float | None
    """Maximum cost in US dollars; null if the price is unknown."""
    input_tokens: int
    """Maximum number of input tokens."""
    output_tokens: int
    """Maximum number of output tokens of all choices: the output limit that the call would get. If
    the call would not be admitted now, it is the smallest one with which it would be made."""
    outcome: Literal["admitted", "waits", "refused"]
    """`waits`: the call fits once other calls are settled."""
    refusal: RefusalView | None
    """Null unless the call would be refused."""
    limits: list[LimitView]
    """Every limit on a quantity that the call reserves."""


def reservation(
    run_id: str | None,
    call_request: GatewayRequest,
    preview: Preview,
    refusal: Refusal | None,
    scope: Scope,
    limits: Sequence[AccountLimit],
) -> ReservationView:
    """Return the view of a reservation; ``limits`` are those of the accounts."""
    spent, refused = preview.spent, None
    if refusal is not None:
        refused = RefusalView.of_parts(refusal)
    return ReservationView(
        run_id=run_id,
        model=call_request.model.model,
        alias=call_request.alias,
        provider=call_request.model.provider.name,
        cost_usd=None if spent.cost_usd is None else float(spent.cost_usd),
        input_tokens=spent.tokens_in or 0,
        output_tokens=spent.tokens_out or 0,
        outcome="refused" if refusal else "waits" if preview.waits else "admitted",
        refusal=refused,
        limits=[*_of_scopes(scope, preview.charge), *_of_accounts(limits, preview.charge)],
    )


def _of_scopes(scope: Scope, charge: Charge) -> Iterator[LimitView]:
    """Yield the limits of a run and of its parents, innermost first."""
    for each in scope.lineage():
        for dimension, limit in each.limits.items():
            if (amount := charge.get(dimension)) is not None:
                used, reserved = each.usage.of(dimension), each.reserved(dimension)
                yield _limit(
                    each.name,
                    dimension,
                    (limit, used, reserved, amount),
                    each.stop(dimension, amount),
                )


def _of_accounts(limits: Sequence[AccountLimit], charge: Charge) -> Iterator[LimitView]:
    """Yield the limits of the accounts above a run."""
    for each in limits:
        amount = charge.get(each.dimension, 0)
        amounts = each.limit, each.used, each.reserved, amount
        yield _limit(each.scope, each.dimension, amounts, each.exceeded_by(charge))


def _limit(
    scope: str, dimension: Dimension, amounts: Sequence[Amount], stop: BudgetExceededError
) -> LimitView:
    """Return the view of a limit; ``stop`` is the refusal of a call that exceeds it."""
    is_cost = dimension is Dimension.COST_USD
    limit, used, reserved, requested = (float(each) if is_cost else int(each) for each in amounts)
    total = sum(Decimal(each) for each in amounts[1:])
    admits = total <= amounts[0]
    return LimitView(
        scope=scope,
        dimension=dimension.value,
        limit=limit,
        used=used,
        reserved=reserved,
        requested=requested,
        admits=admits,
        reason=None if admits else refusal_of(stop).message,
        resets_at=stop.cause.resets_at,
    )

"""Operator commands for API keys, which read and write the configured database directly."""

import re
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from caseworker.cli.model_options import MODEL_NAMES, models_of
from caseworker.cli.output import AsJson, fail, show, show_json, show_table, startup_errors
from caseworker.cli.service import BASE_PATHS, Url
from caseworker.cli.streams import note
from caseworker.core.budget.budget import MAX_LIMIT
from caseworker.features.access.agent_keys import AgentTerms
from caseworker.features.access.keys import (
    MAX_OVERLAP,
    ApiKey,
    IssuedKey,
    KeyConflictError,
    KeyNotFoundError,
)
from caseworker.platform.caller import DEFAULT_TENANT, MAX_NAME_CHARS, OPERATOR, KeyScope, is_tenant

cli = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")

KeyId = Annotated[str, typer.Argument(help="ID of the key (see `keys list`).")]
OfTenant = Annotated[str | None, typer.Option(help="List only the keys of this tenant.")]

AgentBudget = Annotated[
    float | None, typer.Option(min=0, metavar="USD", help="Limit on the cost; see --agent.")
]

_SPAN = re.compile(r"(\d{1,5})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@startup_errors()
def _with(use: Callable[[Any], Awaitable[Any]]) -> Any:
    """Call ``use`` with the API keys in the configured database and return its result."""
    from caseworker.main.commands import with_keys

    return with_keys(use)


@cli.command("create")
def create_key_command(
    name: Annotated[
        str | None, typer.Option(help="Name of the key, recorded as the requester in receipts.")
    ] = None,
    tenant: Annotated[
        str, typer.Option(help="Tenant whose runs the key can access.")
    ] = DEFAULT_TENANT,
    scope: Annotated[
        list[KeyScope] | None,
        typer.Option(
            help="Scope: run (default) or approve, both including read, read, or admin (all). "
            "Repeatable."
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="Expiry as a duration (90d, 12h) or a timestamp (default: never)."),
    ] = None,
    agent: Annotated[
        bool,
        typer.Option(
            "--agent",
            help="Create a standing key for agents: it opens external runs at the gateway, within "
            "its budgets. Prints the lines that set it for OpenAI and Anthropic clients.",
        ),
    ] = False,
    budget_usd: AgentBudget = None,
    budget_usd_per_day: AgentBudget = None,
    budget_usd_per_month: AgentBudget = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"Model that may be called; see --agent: {MODEL_NAMES}"),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL that is notified when 70 and 90 % of a budget are spent; see --agent.",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it; it cannot be shown again.

    Budgets and models are for --agent, which requires the budget per day. --budget-usd limits each
    session.
    """
    budgets = (budget_usd, budget_usd_per_day, budget_usd_per_month)
    terms = _terms(*budgets, models_of(model)) if agent else None
    if webhook is not None:
        if terms is None:
            fail("--webhook: only keys with --agent have budgets")
        with startup_errors():
            from caseworker.main.commands import require_webhook_url

            require_webhook_url(webhook)
        terms = replace(terms, webhook={"url": webhook})
    if agent and scope:
        fail("--scope: a key of an agent only works at the gateway")
    if not agent and budgets != (None, None, None):
        fail("--budget-usd: only keys with --agent have budgets")
    if not agent and model:
        fail("--model: only keys with --agent have models")
    if not agent and name is None:
        fail("--name: an API key has a name")
    name = name or "agent"
    if not is_tenant(tenant):
        fail("--tenant: must have 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        fail(f"--name: must have 1 to {MAX_NAME_CHARS} printable characters")
    until = None if expires is None else _instant(expires)
    scopes = frozenset(scope or [KeyScope.READ if agent else KeyScope.RUN])

    async def create_key(keys: Any) -> tuple[bool, IssuedKey]:
        is_first = not await keys.any()
        about = {"name": name, "scopes": scopes, "tenant": tenant, "expires_at": until}
        return is_first, await keys.create(OPERATOR, **about, agent=terms)

    is_first, issued = _with(create_key)
    if agent and not as_json:
        _show_variables(issued, url)
        return
    _show_issued(issued, as_json=as_json)
    if is_first and not agent:
        note("This is the first key: from now on, every client needs a key.")


@cli.command("list")
def list_keys_command(tenant: OfTenant = None, as_json: AsJson = False) -> None:
    """List keys, newest first, without their secrets."""
    keys = _with(lambda keys: keys.list(OPERATOR, tenant))
    if as_json:
        show_json([asdict(key) for key in keys])
        return
    now = datetime.now(UTC)
    rows = (
        {
            "id": key.key_id,
            "tenant": key.tenant,
            "name": key.name,
            "scopes": "agent"
            if key.agent
            else ",".join(scope.value for scope in KeyScope if scope in key.scopes),
            "created": f"{key.created_at.astimezone(UTC):%Y-%m-%d}",
            "state": _state(key, now),
        }
        for key in keys
    )
    show_table(rows, "id tenant name scopes created state")


@cli.command()
def revoke(key_id: KeyId) -> None:
    """Revoke a key; every process rejects it within five seconds.

    The standing keys that it has made are revoked too. Open runs of standing keys are cancelled,
    unless another key has replaced theirs.
    """
    from caseworker.main.commands import revoke_key

    with _key_errors(), startup_errors():
        revoked, cancelled = revoke_key(key_id)
    runs = f" Cancelled {_runs(cancelled)}." if cancelled else ""
    show(f"Revoked key {revoked.key_id} ({revoked.name}).{runs}")


@cli.command("revoke-all")
def revoke_all(
    before: Annotated[
        str, typer.Option(help="Revoke keys created before this timestamp, or `now` for all.")
    ],
    but: Annotated[
        list[str] | None,
        typer.Option("--except", metavar="ID", help="ID of an API key to keep. Repeatable."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Revoke only keys of this tenant.")] = None,
    as_json: AsJson = False,
) -> None:
    """Revoke all keys that were created before a time, such as those of a restored backup.

    These are the API keys of all tenants and the keys of open external runs. Every process rejects
    them within five seconds. The open runs of standing keys are cancelled.
    """
    from caseworker.main.commands import revoke_all_keys

    until = datetime.now(UTC) if before == "now" else _timestamp(before, "--before")
    with _key_errors(), startup_errors():
        revoked = revoke_all_keys(before=until, tenant=tenant, but=but or ())
    keys, runs, cancelled = revoked.keys, revoked.runs, revoked.cancelled
    if as_json:
        names = ("keys", "runs", "cancelled")
        show_json({name: [asdict(each) for each in getattr(revoked, name)] for name in names})
        return
    for key in keys:
        show(f"Revoked key {key.key_id} ({key.name}) of tenant {key.tenant}.")
    show(f"Revoked {len(keys)} API keys, and the keys of {len(runs)} open runs.")
    if cancelled:
        show(f"Cancelled {_runs(cancelled)} of standing keys.")


@cli.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[
        str, typer.Option(help="How long the old key remains valid, such as 24h or 0s.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Create a key that replaces another one, and print it."""
    span = _span(overlap)
    if span is None or span > MAX_OVERLAP:
        fail(f"--overlap: must be a duration such as 24h, at most {MAX_OVERLAP.days}d")
    with _key_errors():
        issued = _with(lambda keys: keys.rotate(OPERATOR, key_id, overlap=span))
    _show_issued(issued, as_json=as_json)


@contextmanager
def _key_errors() -> Iterator[None]:
    try:
        yield
    except KeyNotFoundError:
        fail("No key has this ID. `caseworker keys list` lists all keys.")
    except KeyConflictError:
        fail(
            "The key was already rotated or revoked, has expired, or the tenant has too many keys."
            " `caseworker keys revoke` ends the overlap of a rotated key."
        )


def _terms(
    budget_usd: float | None,
    budget_usd_per_day: float | None,
    budget_usd_per_month: float | None,
    models: dict[str, str],
) -> AgentTerms:
    """Return the terms of a new standing key."""
    if budget_usd_per_day is None:
        fail("--budget-usd-per-day: required with --agent")

    def limits(usd: float | None) -> dict[str, float] | None:
        if usd is not None and not usd < MAX_LIMIT:  # not a number, or infinite
            fail(f"--budget-usd: must be a number, not {usd}")
        return None if usd is None else {"max_cost_usd": usd}

    return AgentTerms(
        budget=limits(budget_usd),
        budget_per_day=limits(budget_usd_per_day),
        budget_per_month=limits(budget_usd_per_month),
        models=models or None,
    )


def _runs(cancelled: Sequence[Any]) -> str:
    return "1 run" if len(cancelled) == 1 else f"{len(cancelled)} runs"


def _show_variables(issued: IssuedKey, url: str | None) -> None:
    """Print only the lines that set the variables of clients, so that a shell can evaluate them."""
    from caseworker.main.service_address import service_address

    with startup_errors():
        base = service_address(url).url.rstrip("/")
    key = shlex.quote(issued.secret)
    note(
        f"Standing key {issued.key.key_id} of tenant {issued.key.tenant}. It is shown only once. "
        "Set these variables for an agent:"
    )
    for vendor, path in BASE_PATHS.items():
        show(f"export {vendor}_BASE_URL={shlex.quote(base + path)} {vendor}_API_KEY={key}")


def _show_issued(issued: IssuedKey, *, as_json: bool) -> None:
    """Print only the key on standard output, so that scripts can read it."""
    key = issued.key
    if as_json:
        show_json({**asdict(key), "key": issued.secret})
        return
    until = "" if key.expires_at is None else f", until {key.expires_at:%Y-%m-%d %H:%M}Z"
    note(f"Key {key.key_id} of tenant {key.tenant}{until}. It is shown only once:")
    show(issued.secret)


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if not key.works_at(now):
        return "expired"
    until = "" if key.expires_at is None else f" until {key.expires_at.astimezone(UTC):%Y-%m-%d}"
    return f"rotated, works{until}" if key.rotated_to else f"works{until}"


def _span(text: str) -> timedelta | None:
    match = _SPAN.fullmatch(text)
    return None if match is None else timedelta(**{_UNITS[match[2]]: int(match[1])})


def _timestamp(text: str, option: str, what: str = "") -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        fail(f"{option}: must be {what}a timestamp such as 2027-01-31T12:00:00Z")


def _instant(text: str) -> datetime:
    now, span = datetime.now(UTC), _span(text)
    if span is not None:
        until = now + span
    else:
        until = _timestamp(text, "--expires", "a duration such as 90d, or ")
    if until <= now:
        fail("--expires: must be in the future")
    return until

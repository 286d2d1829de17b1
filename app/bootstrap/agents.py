"""What runs are executed with: models, tools and nodes."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches

from app.bootstrap.errors import StartupError
from app.bootstrap.toolbox import Toolbox
from app.control.retry import RetryPolicy
from app.llm.forms import StructuredOutput
from app.llm.gateway import ModelGateway, Tier, TierModel
from app.llm.ports import ModelProvider
from app.llm.pricing import FixedPrices, Prices, TokenPrice
from app.nodes.case.case import ActLimits, CaseDefaults, EscalateWhen, Mode
from app.nodes.case.node import CaseNode, case_type
from app.nodes.case.recomputation import DeterministicTools
from app.nodes.catalog import NodeCatalog
from app.nodes.function import FunctionNode
from app.nodes.llm import llm_type
from app.nodes.mapping import map_type
from app.nodes.registered import function_type
from app.nodes.router import router_type
from app.nodes.subgraph import subgraph_type
from app.nodes.tool import tool_type
from app.nodes.tool_names import ToolNames
from app.nodes.toolset import toolset_type
from app.settings.cases import ModelSettings, RetrySettings, TierSettings
from app.settings.schema import Settings
from app.tools.arguments import ArgumentChecks
from app.tools.dates.reader import DateReader
from app.tools.dispatch import ToolDispatch
from app.tools.policy import ToolPolicy
from app.tools.ports import Tool
from app.tools.registry import ToolRegistry


def build_tools(settings: Settings, tools: tuple[Tool, ...]) -> ToolDispatch:
    """Return the tools that the configuration allows.

    Raises:
        StartupError: it allows or denies a tool that does not exist.
    """
    allow = settings.tools.allow
    known = [tool.spec.name for tool in tools]
    _require_known("tools.allow", allow or (), known)
    _require_known("tools.deny", settings.tools.deny, known)
    policy = ToolPolicy(
        allow=None if allow is None else frozenset(allow), deny=frozenset(settings.tools.deny)
    )
    return ToolDispatch(
        ToolRegistry(tools),
        policy,
        payloads=settings.trace.payloads,
        retry=_retry(settings.retry),
    )


def _require_known(key: str, names: Iterable[str], known: list[str]) -> None:
    """Refuse a name that no tool has: whoever denies ``Plotter`` would be left with the plotter."""
    for name in names:
        if name not in known:
            near = get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise StartupError(
                f"{key}: there is no tool {name!r}{hint} The tools are {', '.join(sorted(known))}"
            )


def build_models(settings: Settings) -> ModelGateway:
    """Return the models of both tiers."""
    small, big = settings.models.small, settings.models.big
    tiers = {Tier.SMALL: _tier(small), Tier.BIG: _tier(big)}
    prices = _prices((small, *small.fallbacks, big, *big.fallbacks))
    return ModelGateway(tiers, prices, _retry(settings.retry))


def build_catalog(
    settings: Settings,
    models: ModelGateway,
    tools: ToolDispatch,
    toolbox: Toolbox,
    functions: Iterable[FunctionNode] = (),
) -> NodeCatalog:
    """Return the types of step that graphs are made of; ``functions`` are those they may name."""
    defaults = _case_defaults(settings)
    known = ToolNames(spec.name for spec in tools.usable())
    checks = ArgumentChecks(ToolRegistry(toolbox.tools))
    case = CaseNode(
        models=models,
        tools=tools,
        recomputation=DeterministicTools(toolbox.deterministic),
        dates=DateReader(),
        defaults=defaults,
        clock=lambda: datetime.now(UTC),
    )
    return NodeCatalog(
        (
            case_type(case),
            function_type(functions),
            llm_type(),
            map_type(),
            router_type(),
            subgraph_type(),
            tool_type(tools, checks, known, timezone=defaults.timezone),
            toolset_type(known),
        )
    )


def _case_defaults(settings: Settings) -> CaseDefaults:
    act = settings.act
    return CaseDefaults(
        timezone=settings.flags.zone_name,
        mode=Mode(settings.flags.mode),
        act=ActLimits(
            max_steps=act.max_steps,
            max_steps_fallback_only=act.max_steps_fallback_only,
            no_progress_patience=act.no_progress_patience,
            min_improvement=act.min_improvement,
            escalate_when=EscalateWhen(settings.flags.escalate_when),
        ),
        pass_metric=settings.verifier_thresholds.pass_metric,
        wrap_up_reserve=settings.budget.wrap_up_reserve,
    )


def _retry(settings: RetrySettings) -> RetryPolicy:
    return RetryPolicy(
        max_retries=settings.max_retries,
        base_seconds=settings.base_seconds,
        factor=settings.factor,
        jitter=settings.jitter,
        max_delay_seconds=settings.max_seconds,
    )


def _tier(chosen: TierSettings) -> TierModel:
    return replace(_model(chosen), fallbacks=tuple(map(_model, chosen.fallbacks)))


def _model(chosen: ModelSettings) -> TierModel:
    return TierModel(
        provider=_provider(chosen),
        model=chosen.chosen_model,
        temperature=chosen.temperature,
        max_output_tokens=chosen.max_output_tokens,
        timeout_seconds=chosen.timeout_seconds,
        structured_output=StructuredOutput(chosen.structured_output),
        price=_stated_price(chosen),
    )


def _stated_price(chosen: ModelSettings) -> TokenPrice | None:
    """Return what the configuration says a model costs, wherever it is asked."""
    if chosen.price_per_million_in_usd is None or chosen.price_per_million_out_usd is None:
        return None
    return TokenPrice(
        usd_per_million_in=chosen.price_per_million_in_usd,
        usd_per_million_out=chosen.price_per_million_out_usd,
        usd_per_million_cached=chosen.price_per_million_cached_usd,
    )


def _provider(chosen: ModelSettings) -> ModelProvider:
    """Build a provider; what is not configured is not imported, which would cost a second."""
    key = chosen.api_key.get_secret_value() if chosen.api_key else None
    match chosen.chosen_provider:
        case "offline":
            from app.adapters.providers.offline.provider import OfflineProvider

            return OfflineProvider()
        case "openai":
            from app.adapters.providers.pydantic_ai.openai import openai_provider

            return openai_provider(base_url=chosen.base_url, api_key=key)
        case "anthropic":
            from app.adapters.providers.pydantic_ai.anthropic import anthropic_provider

            return anthropic_provider(base_url=chosen.base_url, api_key=key)


def _prices(models: tuple[ModelSettings, ...]) -> Prices:
    """Return what the models cost for which the configuration states no price."""
    fixed = FixedPrices(free_providers={"offline"})
    if all(model.chosen_provider == "offline" for model in models):
        return fixed
    from app.adapters.providers.prices import ListPrices

    return ListPrices(fixed)

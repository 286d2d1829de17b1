"""Build the models, tools and nodes that execute runs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from caseworker.core.budget.retry import RetryPolicy
from caseworker.core.trace.payloads import Payloads
from caseworker.features.external.code import run_code
from caseworker.features.external.sessions import external_type
from caseworker.main.configuration import StartupError
from caseworker.main.plugins import Providers, Toolbox, installed_node_types, require_known
from caseworker.models.families import family_of
from caseworker.models.fields.provider_tools import ToolPrice
from caseworker.models.forms import StructuredOutput
from caseworker.models.gateway import ChatModel, ModelGateway
from caseworker.models.ports import ModelEndpoint, ModelProvider, RateLimit, RateLimits
from caseworker.models.pricing import ListPrice, TokenPrice, no_list_price
from caseworker.models.recorded import Recorder, RecordingProvider
from caseworker.models.speeds import tokens_per_second_at
from caseworker.models.table import BUILT_IN, DEFAULT_OUTPUT_TOKENS, ModelTable
from caseworker.models.turns import Turns
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.node import agent_type
from caseworker.nodes.approval import approval_type
from caseworker.nodes.catalog import DuplicateTypeError, NodeCatalog
from caseworker.nodes.chat import chat_start_type
from caseworker.nodes.function import FunctionNode
from caseworker.nodes.llm import llm_type
from caseworker.nodes.node_type import NodeType
from caseworker.nodes.parts import NodeParts
from caseworker.nodes.registered import function_type
from caseworker.nodes.router import router_type
from caseworker.nodes.subgraph import map_type, subgraph_type
from caseworker.nodes.toolset import tool_type, toolset_type
from caseworker.settings.models import STUB, Chain, ModelSettings
from caseworker.settings.schema import Settings
from caseworker.settings.tools import RetrySettings
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import Tool
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker.tools.servers import NO_SERVERS, ToolServers


def build_tools(
    settings: Settings, tools: tuple[Tool, ...], servers: ToolServers = NO_SERVERS
) -> ToolDispatch:
    """Return the dispatcher for the tools that the configuration allows.

    It includes the tools of the MCP ``servers``.

    Raises:
        StartupError: the configuration names a tool that does not exist.
    """
    allow, deny = settings.tools.allow, settings.tools.deny
    tool_names = [tool.spec.name for tool in tools]

    approval = settings.tools.requires_approval
    listed = {"allow": allow or (), "deny": deny, "requires_approval": approval}
    for name, names in listed.items():
        tools_of_limit = (
            each for each in names if not servers.serves(each) and not each.endswith(".*")
        )
        require_known("tool", f"tools.{name}", tools_of_limit, tool_names)
    return ToolDispatch(
        ToolRegistry(tools),
        ToolPolicy(
            allow=None if allow is None else frozenset(allow),
            deny=frozenset(deny),
            approval=frozenset(approval),
        ),
        approval_timeout_seconds=settings.tools.approval_timeout_seconds,
        wait_seconds=settings.tools.wait_seconds,
        payloads=payloads_of(settings),
        retry=retry_policy(settings.retry),
        servers=servers,
        expose_errors=settings.tools.expose_errors,
    )


def payloads_of(settings: Settings) -> Payloads:
    """Return the rules for storing and showing requests and replies in traces."""
    return Payloads(settings.trace.payloads, settings.trace.max_payload_chars)


def build_models(
    settings: Settings, recorder: Recorder | None = None, limits: RateLimits | None = None
) -> ModelGateway:
    """Return the gateway through which runs call the configured models.

    ``recorder`` stores the models' replies. ``limits`` enforces rate limits across processes; None
    disables rate limiting.

    Raises:
        StartupError: a configured provider is not registered or cannot be created.
    """
    providers = check_providers(settings)
    chat_models: dict[str, ChatModel] = {}
    for place, configured in _configured(settings).items():
        endpoint = _endpoint(settings, configured)
        provider = providers.make(configured.chosen_provider, endpoint)
        if recorder is not None:
            provider = RecordingProvider(provider, recorder)
        chat_models[place] = _chat_model(settings, place, configured, provider)
    firsts: dict[str, ChatModel] = {}
    table = ModelTable()
    table.allow_unlisted = settings.models.allow_unlisted
    for name, (first, *fallback_places) in _chains(settings).items():
        with_fallbacks = replace(
            chat_models[first], fallbacks=tuple(chat_models[place] for place in fallback_places)
        )
        table[name] = firsts.setdefault(first, with_fallbacks)
    retry = retry_policy(settings.retry)
    turns = None if limits is None else Turns(limits)
    return ModelGateway(
        table,
        _list_price(settings),
        retry,
        payloads_of(settings),
        turns,
        recorded_embeddings_bytes=settings.gateway.record_embeddings_kb * 1024,
    )


def _endpoint(settings: Settings, configured: ModelSettings) -> ModelEndpoint:
    return ModelEndpoint(
        model=configured.chosen_model,
        base_url=configured.base_url,
        api_key=configured.api_key.get_secret_value() if configured.api_key else None,
        recording=configured.recording,
        max_reply_bytes=settings.limits.max_reply_kb * 1024,
        max_embeddings_bytes=settings.limits.max_embeddings_kb * 1024,
    )


def _chat_model(
    settings: Settings, place: str, configured: ModelSettings, provider: ModelProvider
) -> ChatModel:
    """Return the model that is configured at ``place``, without its fallbacks."""
    most_tokens = configured.max_output_tokens
    return ChatModel(
        provider=provider,
        model=configured.chosen_model,
        name=_name_at(place),
        temperature=configured.temperature,
        max_output_tokens=most_tokens or DEFAULT_OUTPUT_TOKENS,
        largest_output_tokens=most_tokens or family_of(configured.chosen_model).output_tokens,
        max_image_tokens=configured.max_image_tokens,
        min_output_tokens=settings.budget.min_output_tokens,
        timeout_seconds=configured.timeout_seconds,
        structured_output=StructuredOutput(configured.structured_output),
        price=_configured_price(configured),
        limit=_rate_limit(configured),
        stream=configured.stream,
        tokens_per_second=configured.tokens_per_second or tokens_per_second_at(configured.base_url),
        capabilities=configured.capabilities,
        provider_tools={
            name: ToolPrice(**dict(price))
            for name, price in configured.chosen_provider_tools.items()
        },
    )


def check_providers(settings: Settings) -> Providers:
    """Check that all configured model providers are registered, without importing them.

    Raises:
        StartupError: a configured provider is not registered.
    """
    providers = Providers()
    for place, model_settings in _configured(settings).items():
        require_known(
            "provider", f"models.{place}.provider", [model_settings.chosen_provider], providers
        )
    return providers


def _configured(settings: Settings) -> Mapping[str, ModelSettings]:
    """Return all configured models by their settings keys."""
    chains = _chains(settings).values()
    return {place: model_settings for chain in chains for place, model_settings in chain.items()}


def _chains(settings: Settings) -> Mapping[str, Chain]:
    """Return the models of each name, without the default provider if its package is missing."""
    chains = settings.models.chains()
    if BUILT_IN in Providers():
        return chains
    configured = {
        name: {
            place: each
            for place, each in chain.items()
            if each.provider is not None or each.chosen_provider != BUILT_IN
        }
        for name, chain in chains.items()
    }
    return {name: chain for name, chain in configured.items() if chain}


def build_catalog(
    settings: Settings,
    models: ModelGateway,
    tools: ToolDispatch,
    toolbox: Toolbox,
    functions: Iterable[FunctionNode] = (),
    code: Mapping[str, FunctionNode] = MappingProxyType({}),
) -> NodeCatalog:
    """Return the catalog of node types for graphs.

    Steps of type ``function`` can call the given ``functions``. ``code`` are the code agents.

    Raises:
        StartupError: an installed node type cannot be created, or two have the same name.
    """
    parts = NodeParts(models=models, tools=tools, installed_tools=toolbox.tools, settings=settings)
    types = built_in_types(
        tools,
        functions,
        code,
        timezone=settings.flags.zone_name,
        wrap_up_reserve=settings.budget.wrap_up_reserve,
    )
    try:
        return NodeCatalog((*types, *installed_node_types(parts)), models.table)
    except DuplicateTypeError as error:
        raise StartupError(f"An installed node type has a reserved name: {error}.") from None


def built_in_types(
    tools: ToolDispatch,
    functions: Iterable[FunctionNode],
    code: Mapping[str, FunctionNode] = MappingProxyType({}),
    *,
    timezone: str,
    wrap_up_reserve: int,
) -> tuple[NodeType, ...]:
    """Return the node types that need no other package."""
    agents = Agents(
        tools,
        timezone=timezone,
        wrap_up_reserve=wrap_up_reserve,
        code=code,
        run_function=run_code,
    )
    return (
        agent_type(agents, tools, tools.servers),
        approval_type(),
        chat_start_type(),
        external_type(agents),
        function_type(functions, run_code),
        llm_type(agents),
        map_type(),
        router_type(),
        subgraph_type(),
        tool_type(tools, timezone=timezone),
        toolset_type(tools, tools.servers),
    )


def _name_at(place: str) -> str:
    """Return the model name for a settings key; fallbacks of a tier use the tier's name."""
    is_named = place.startswith("named.")
    return place.removeprefix("named.") if is_named else place.partition(".")[0]


def retry_policy(settings: RetrySettings) -> RetryPolicy:
    """Return the policy for retrying failed calls."""
    return RetryPolicy(
        max_retries=settings.max_retries,
        initial_delay_seconds=settings.base_seconds,
        backoff_factor=settings.factor,
        jitter=settings.jitter,
        max_delay_seconds=settings.max_seconds,
    )


_STUB_PRICE = TokenPrice(usd_per_million_in=Decimal(3), usd_per_million_out=Decimal(15))
"""Price of a large hosted model, so that cost limits apply."""


def _configured_price(model_settings: ModelSettings) -> TokenPrice | None:
    """Return the configured price of a model, or the price of the stub; None if it has neither."""
    if model_settings.chosen_provider == STUB and model_settings.price_per_million_in_usd is None:
        return _STUB_PRICE
    if (
        model_settings.price_per_million_in_usd is None
        or model_settings.price_per_million_out_usd is None
    ):
        return None
    return TokenPrice(
        usd_per_million_in=model_settings.price_per_million_in_usd,
        usd_per_million_out=model_settings.price_per_million_out_usd,
        usd_per_million_cached=model_settings.price_per_million_cached_usd,
        usd_per_million_audio_in=model_settings.price_per_million_audio_in_usd,
        usd_per_million_audio_out=model_settings.price_per_million_audio_out_usd,
    )


def _rate_limit(model_settings: ModelSettings) -> RateLimit | None:
    """Return the rate limit of a model; aliases of the same model share it."""
    if model_settings.requests_per_minute is None and model_settings.tokens_per_minute is None:
        return None
    endpoint = f" at {model_settings.base_url}" if model_settings.base_url else ""
    return RateLimit(
        model=f"{model_settings.chosen_provider} {model_settings.chosen_model}{endpoint}",
        requests_per_minute=model_settings.requests_per_minute,
        tokens_per_minute=model_settings.tokens_per_minute,
    )


def begin_recording(settings: Settings, path: Path, about: Mapping[str, Any]) -> Recorder:
    """Open a recorder that stores replies of the configured models in the file ``path``.

    ``about`` describes the recorded workload in the file's header.

    Raises:
        OSError: the file cannot be written.
    """
    models = [
        {
            "name": place,
            "provider": each.chosen_provider,
            "model": each.chosen_model,
            "endpoint": urlsplit(each.base_url).netloc if each.base_url else None,
            **each.model_dump(include={"temperature", "structured_output"}),
        }
        for place, each in _configured(settings).items()
    ]
    header = {
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "models": models,
        "asked": dict(about),
        "timezone": settings.flags.zone_name,
        "versions": {"caseworker": version("caseworker"), "python": python_version()},
    }
    return Recorder(path, header)


def _list_price(settings: Settings) -> ListPrice:
    """Return the list-price lookup for models without a configured price."""
    if all(each.chosen_provider == BUILT_IN for each in _configured(settings).values()):
        return no_list_price
    from caseworker.models.prices import list_price

    return list_price

"""Settings for retries and tools."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from caseworker.settings.models import ApiKey, BaseUrl, ProviderSettings
from caseworker.settings.values import (
    Count,
    Endpoint,
    Names,
    Positive,
    Seconds,
    Section,
    Share,
    Text,
    key,
)


class RetrySettings(Section):
    """Retries after failed calls to model providers and other network services."""

    max_retries: Count = key(2, "Maximum number of retries.")
    base_seconds: Annotated[float, Field(ge=0, strict=True)] = key(
        0.5, "Back-off before the first retry."
    )
    factor: Annotated[Seconds, Field(ge=1, le=100)] = key(2.0, "Growth factor of the back-off.")
    jitter: Share = key(0.2, "Random variation of the back-off: 0.2 means up to 20 % more or less.")
    max_seconds: Seconds = key(30.0, "Maximum back-off between two attempts.")


class PriceSettings(ProviderSettings):
    """Source of the daily prices for the stock tools."""

    built_in, live = "packaged", "tiingo"

    provider: Literal["packaged", "tiingo"] | None = None
    """Source of prices: a packaged data set (five companies, 2000 to 2013) or tiingo.com. Null is
    `tiingo` with a key or base_url, else `packaged`."""
    api_key: ApiKey | None = None
    """API key of tiingo.com. Defaults to TIINGO_API_KEY if base_url is null."""
    base_url: BaseUrl | None = None
    """Endpoint of the price source. Null is the provider's default."""
    timeout_seconds: Seconds = key(15.0, "Timeout of one request.")


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("must be the name of an environment variable")
    return name


Variable = Annotated[Text, AfterValidator(_variable)]


class McpServerSettings(Section):
    """An MCP server: a program that the service starts, or a URL."""

    command: Text | None = key(
        None, "Command that starts the server; communication uses stdin and stdout."
    )
    args: tuple[str, ...] = key((), "Its arguments.")
    env: tuple[Variable, ...] = key((), "Names of the environment variables passed to the command.")
    url: Endpoint | None = key(None, "URL of a server that supports streamable HTTP.")
    headers: dict[Text, Variable] = key(
        {}, "HTTP headers; each value is the name of an environment variable."
    )
    allow: Names | None = key(None, "Names of the server's tools that may be used; null: all.")
    timeout_seconds: Seconds = key(
        30.0, "Timeout of one call; each progress notification restarts it."
    )
    progress_timeout_seconds: Seconds = key(
        300.0, "Timeout of one call whose server reports progress."
    )
    start_timeout_seconds: Seconds = key(
        10.0, "Timeout for starting the server and listing its tools."
    )
    max_result_kb: Positive = key(8192, "Maximum size of a message from the server, in KiB.")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("command: set either command or url")
        if self.headers and self.url is None:
            raise ValueError("headers: allowed only with url")
        if (self.env or self.args) and self.command is None:
            raise ValueError("args: args and env are allowed only with command")
        return self


ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]


class McpSettings(Section):
    """MCP servers that provide tools; only the operator can configure them."""

    servers: dict[ServerName, McpServerSettings] = key({}, "MCP servers by name; see docs/mcp.md.")


class HttpToolSettings(Section):
    """A tool that sends one HTTP request: to a URL, or as an operation of an OpenAPI document."""

    description: Text | None = key(None, "Description for models; with openapi: its own.")
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = key("GET", "Method.")
    url: Endpoint | None = key(None, "URL with {placeholders}; with openapi: the server's URL.")
    parameters: dict[str, Any] | None = key(None, "JSON Schema of the arguments; null: strings.")
    openapi: Path | None = key(None, "OpenAPI document, a JSON or YAML file.")
    operation_id: Text | None = key(None, "The operation's operationId, or `GET /path`.")
    headers_env: dict[Text, Variable] = key({}, "Headers, each from an environment variable.")
    signing_secret_env: Variable | None = key(None, "Environment variable with a signing secret.")
    timeout_seconds: Seconds = key(10.0, "Timeout of one attempt.")
    max_response_kb: Positive = key(256, "Maximum size of a response, in KiB.")
    idempotent: bool | None = key(None, "Whether a call may be repeated; null: by method.")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.openapi is None) != (self.operation_id is None):
            raise ValueError("openapi: set both openapi and operation_id")
        if self.openapi is None and (self.url is None or self.description is None):
            raise ValueError("url: set url and description, or openapi and operation_id")
        if self.openapi is not None and (self.parameters is not None or self.method != "GET"):
            raise ValueError("openapi: the document has the method and the parameters")
        return self


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class ToolSettings(Section):
    """Selection of the registered tools that runs may use."""

    allow: Names | None = key(None, "Names of the tools that may be used; null: all.")
    deny: Names = key(
        (), "Names of the tools that must not be used; takes precedence over `allow`."
    )
    requires_approval: Names = key(
        (), "Names of the tools whose calls require approval; `server.*`: all tools of a server."
    )
    approval_timeout_seconds: Seconds = key(
        86_400.0, "Time limit for approving a call; a call not approved in time is not made."
    )
    wait_seconds: Seconds = key(
        86_400.0, "Time limit for a client to execute a tool of its own; the call then fails."
    )
    plugins: Names = key((), "Tools to add, by import path such as my_package.tools:Weather.")
    expose_errors: bool = key(
        False,
        "Whether models see the messages of unexpected tool exceptions, or only the class.",
    )
    http: dict[ToolName, HttpToolSettings] = key(
        {}, "Tools that call HTTP APIs, by name; see docs/write-a-tool.md."
    )
    prices: PriceSettings = PriceSettings()
    mcp: McpSettings = McpSettings()

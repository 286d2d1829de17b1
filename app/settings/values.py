"""What every section of the settings has in common, and the kinds of values."""

from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

ENVIRONMENT_ONLY = "environment only"
"""Marks a key whose value may not stand in a file."""


class Section(
    BaseModel, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
):
    """A part of the settings; frozen, and closed to keys that it does not know."""

    @model_validator(mode="before")
    @classmethod
    def _empty_sets_nothing(cls, given: Any) -> Any:
        """Read a section without keys, which is null in YAML, as one that sets nothing."""
        return {} if given is None else given


def contradiction(key: str, problem: str) -> PydanticCustomError:
    """Build the error for the ``key`` of a section whose value does not fit another one."""
    return PydanticCustomError("contradiction", "{problem}", {"problem": problem, "key": key})


def _endpoint(url: str) -> str:
    with suppress(ValueError):
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.port != 0
        if known and parts.hostname and "@" not in parts.netloc:
            return url
    raise ValueError("must be an http or https URL without user or password")


def _api_key(key: SecretStr) -> SecretStr:
    """Refuse what no HTTP header can hold: clients would fail with it, and quote it."""
    text = key.get_secret_value()
    if not (text and text.isascii() and text.isprintable()):
        raise ValueError("must be a key of printable ASCII characters")
    return key


# Numbers are strict: `true` is none.
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
Positive = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=10**9, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Usd = Annotated[Decimal, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Names = tuple[Text, ...]
Endpoint = Annotated[str, AfterValidator(_endpoint)]
ApiKey = Annotated[Annotated[SecretStr, AfterValidator(_api_key)] | None, ENVIRONMENT_ONLY]

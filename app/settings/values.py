"""The kinds of values that settings have."""

from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr


class Section(BaseModel):
    """A part of the settings; frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


def _no_truth(value: Any) -> Any:
    """Refuse ``true`` where a number belongs; pydantic would read it as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


_Number = BeforeValidator(_no_truth)

Count = Annotated[int, Field(ge=0, le=2**53), _Number]
Positive = Annotated[int, Field(ge=1, le=2**53), _Number]
Megabytes = Annotated[int, Field(ge=1, le=64), _Number]
"""Of what is held in memory as a whole."""
Seed = Annotated[int, Field(ge=0, lt=2**31), _Number]
Port = Annotated[int, Field(ge=0, le=65535), _Number]
Switch = Annotated[int, Field(ge=0, le=1), _Number]
Amount = Annotated[float, Field(ge=0), _Number]
Seconds = Annotated[float, Field(gt=0, le=10**9), _Number]
Share = Annotated[float, Field(ge=0, le=1), _Number]
Factor = Annotated[float, Field(ge=1, le=100), _Number]
Temperature = Annotated[float, Field(ge=0, le=2), _Number]
Usd = Annotated[Decimal, Field(ge=0), _Number]
Text = Annotated[str, Field(min_length=1)]
Names = tuple[Text, ...]


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    known = parts.scheme in ("http", "https") and parts.port != 0
    if not known or not parts.hostname or "@" in parts.netloc:
        raise ValueError("must be a URL")
    return url


Endpoint = Annotated[
    str,
    AfterValidator(_endpoint),
    Field(json_schema_extra={"expected": "an http or https URL without user or password"}),
]


def _api_key(key: SecretStr) -> SecretStr:
    """Refuse what no HTTP header can hold: clients would fail with it, and quote it."""
    text = key.get_secret_value()
    if not text.isascii() or not text.isprintable():
        raise ValueError("must be printable ASCII")
    return key


ApiKey = Annotated[
    SecretStr,
    AfterValidator(_api_key),
    Field(
        min_length=1,
        json_schema_extra={
            "environment_only": True,
            "expected": "a key of printable ASCII characters",
        },
    ),
]

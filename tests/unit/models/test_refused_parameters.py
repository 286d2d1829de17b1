"""Parameters that an endpoint does not support are learned from its error."""

from typing import Any

import pytest

from caseworker.engine.call import CallFailedError
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, priced

UNSUPPORTED = "Unsupported parameter: 'max_tokens' is not supported with this model."
RENAMED = f"{UNSUPPORTED} Use 'max_completion_tokens' instead."


def _sent(said: str, **options: Any) -> list[dict[str, Any]]:
    """Return the bodies sent for two calls.

    The endpoint rejects the first attempt of the first call.
    """

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=400, text=said))
        await asking.ask(seed=7, temperature=0.5, max_output_tokens=99, **options)
        await asking.ask(seed=7, temperature=0.5, max_output_tokens=99, key="again", **options)

    return [arrival.body for arrival in asking_after(story, priced("first")).provider.arrivals]


def test_the_limit_of_output_tokens_takes_the_name_that_the_endpoint_knows() -> None:
    """The output limit is always sent, under the name that the endpoint supports."""
    refused, retried, later = _sent(RENAMED)

    assert refused["max_tokens"] == 99
    for body in (retried, later):
        assert body["max_completion_tokens"] == 99
        assert "max_tokens" not in body


@pytest.mark.parametrize("name", ["temperature", "seed"])
def test_a_parameter_that_is_refused_by_name_is_left_out_from_then_on(name: str) -> None:
    """Only the rejected parameter is left out."""
    refused, retried, later = _sent(f"Unrecognized request argument supplied: {name}")

    assert retried == later == {key: value for key, value in refused.items() if key != name}


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 99. This model has at most 16.",
        "The temperature must be below 0.2",
    ],
)
def test_a_value_that_is_refused_is_not_asked_for_again(said: str) -> None:
    """The endpoint knows the parameter, so a retry with the same value would fail again."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=400, text=said))
        with pytest.raises(CallFailedError):
            await asking.ask(temperature=0.5, max_output_tokens=99)

    assert len(asking_after(story, priced("first")).provider.arrivals) == 1

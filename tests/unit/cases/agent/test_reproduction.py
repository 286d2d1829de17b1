"""Equal seeds and inputs produce byte-identical requests."""

import pytest

from caseworker.models.forms import StructuredOutput
from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.pricing import no_list_price
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider.script import Step
from tests.support.fake_provider.virtual import VirtualProvider
from tests.support.limits import retry_policy, tier_model
from tests.unit.cases.agent.world import calculate, case_run, plan, result_of

SMALL = (Step(text="no plan"), Step(text=plan(calculate("1 / 0"))), Step(text="no plan"))
BIG = (Step(text=plan(calculate("6 * 7"))),)


async def requests(form: StructuredOutput, seed: int | None) -> list[bytes]:
    """Solve the same case in a new world; return the bodies that were sent."""
    fake = VirtualProvider()
    fake.script("small", *SMALL, repeat_last=True)
    fake.script("big", *BIG)
    provider = openai_provider(base_url="http://models.test/v1", wire=fake.wire())
    models = ModelGateway(
        {
            tier: tier_model(provider=provider, model=tier.value, structured_output=form)
            for tier in Tier
        },
        no_list_price,
        retry_policy(),
    )
    result = result_of(await case_run(models=models).run(seed=seed, expected_tools=["calculator"]))
    await models.aclose()
    assert result["verified"] is True
    return [came.content for came in fake.arrivals]


@pytest.mark.req("002/22.1", "002/22.3", "002/22.4")
@pytest.mark.parametrize("form", [StructuredOutput.SCHEMA, StructuredOutput.TEXT])
async def test_the_same_seed_and_input_make_the_same_requests_to_the_byte(
    form: StructuredOutput,
) -> None:
    """Plans, reprompts and escalations send byte-identical requests that contain the seed."""
    first, second = await requests(form, 7), await requests(form, 7)

    assert len(first) == 5
    assert first == second
    assert all(b'"seed":7' in body for body in first)


async def test_without_a_seed_none_is_sent() -> None:
    """Without a seed, the requests contain none and the provider chooses."""
    assert not any(b'"seed"' in body for body in await requests(StructuredOutput.SCHEMA, None))

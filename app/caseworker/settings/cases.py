"""Settings for the case agent, and defaults for runs."""

from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field
from tzlocal import get_localzone_name

from caseworker.core.budget.budget import Budget
from caseworker.settings.admission import LimitSettings, limited
from caseworker.settings.values import Count, Positive, Section, Share, key


def _one_call(calls: int) -> int:
    if calls > 1:
        raise ValueError("must be 0 or 1: a final answer requires one call")
    return calls


OneCall = Annotated[Count, AfterValidator(_one_call)]


@limited(Budget(max_llm_calls_small=6, max_llm_calls_big=2, max_tool_calls=6, max_seconds=60.0))
class BudgetSettings(LimitSettings):
    """Default limits of a case run; null is unlimited, 0 allows nothing."""

    min_output_tokens: Positive = key(
        256, "Minimum output tokens to request per model call; a nearly exhausted budget lowers it."
    )
    wrap_up_reserve: OneCall = key(
        1, "1 reserves one call of a limit above 1 for the final answer; 0 disables this."
    )


class ActSettings(Section):
    """The gate that decides whether the case agent continues, stops or escalates."""

    max_steps: Count = key(3, "Maximum rounds of the small model in mode hrm_small_then_escalate.")
    max_steps_fallback_only: Annotated[int, Field(ge=0, le=1, strict=True)] = 1
    """Maximum rounds of the small model in mode fallback_only, at most max_steps. 1 sends the
    single pass to the gate, 0 to the verifier only."""
    min_improvement: Share = key(0.01, "Minimum increase of the metric that counts as progress.")
    no_progress_patience: Count = key(
        1, "Number of consecutive rounds without progress that are tolerated."
    )


class VerifierSettings(Section):
    """The verifier, which checks the answers to cases."""

    pass_metric: Share = key(1.0, "Share of the checks of an answer that must pass.")
    second_plan: Literal["auto", "off"] = "auto"
    """Whether to request a second plan from the model if no other check confirms the operation that
    it chose. This takes one more call in its tier."""


class FlagSettings(Section):
    """Default options for case runs."""

    mode: Literal["hrm_small_then_escalate", "escalate", "fallback_only"] = (
        "hrm_small_then_escalate"
    )
    """Mode for cases: several rounds on the small model before the big one (short: escalate), or a
    single round."""
    escalate_when: Literal["fail", "fail_or_budget"] = "fail_or_budget"
    """Whether to escalate to the big model only on failure, or also when the small model's limits
    are exhausted."""
    max_input_chars: Count = key(8192, "Maximum length of the input of a run, in characters.")
    timezone: ZoneInfo | None = key(
        None, "Default time zone for dates, such as Europe/Berlin; null: that of the system."
    )
    seed: Annotated[Count, Field(lt=2**31)] | None = key(
        None, "Default sampling seed for runs that set none; null: no seed."
    )

    @property
    def zone_name(self) -> str:
        """IANA name of the configured time zone, or of the system's if none is configured."""
        return self.timezone.key if self.timezone else get_localzone_name()

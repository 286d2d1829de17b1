"""Every kind of question that is understood, and the words by which it can be told.

Every rule is tried on a question, even after another one has fitted; so that this is cheap, a rule
names words of which one has to be in whatever it reads. They only spare work: a rule that is tried
in vain changes nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.clocks import CLOCK_WORDS
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.day_facts import read_day_fact
from app.adapters.providers.offline.reading.dates.day_order import read_day_order
from app.adapters.providers.offline.reading.dates.day_questions import (
    read_day_question,
    read_move,
    read_normalise,
    read_plain_day,
)
from app.adapters.providers.offline.reading.dates.distance_questions import (
    read_days_in,
    read_distance,
    read_leap_year,
)
from app.adapters.providers.offline.reading.dates.elapsed_questions import read_elapsed
from app.adapters.providers.offline.reading.dates.moment_questions import (
    read_conversion_of_time,
    read_time_later,
    read_time_now,
)
from app.adapters.providers.offline.reading.dates.weekday_counts import read_weekday_count
from app.adapters.providers.offline.reading.dates.weekday_totals import (
    TOTAL_WORDS,
    read_weekday_total,
)
from app.adapters.providers.offline.reading.stocks.comparisons import (
    VERDICT_WORDS,
    read_stock_comparison,
)
from app.adapters.providers.offline.reading.stocks.gaps import read_price_gap
from app.adapters.providers.offline.reading.stocks.questions import read_stock_question
from app.adapters.providers.offline.reading.stories.ages import read_age, read_birthday
from app.adapters.providers.offline.reading.stories.baskets import read_basket
from app.adapters.providers.offline.reading.stories.bills import read_share_of_bill
from app.adapters.providers.offline.reading.stories.change import read_change
from app.adapters.providers.offline.reading.stories.containers import read_containers
from app.adapters.providers.offline.reading.stories.day_stories import read_day_story
from app.adapters.providers.offline.reading.stories.interest import read_interest
from app.adapters.providers.offline.reading.stories.ledgers import read_ledger
from app.adapters.providers.offline.reading.stories.motion import read_motion
from app.adapters.providers.offline.reading.stories.number_stories import read_number_story
from app.adapters.providers.offline.reading.stories.percent_changes import read_percent_changes
from app.adapters.providers.offline.reading.stories.purchases import read_rate_question
from app.adapters.providers.offline.reading.stories.rate_chains import read_rate_chain
from app.adapters.providers.offline.reading.stories.relations import read_relation
from app.adapters.providers.offline.reading.stories.scaling import read_scaling
from app.adapters.providers.offline.reading.stories.sharing import read_sharing
from app.adapters.providers.offline.reading.stories.totals import read_total
from app.adapters.providers.offline.reading.stories.trades import read_trade
from app.adapters.providers.offline.reading.sums.calculations import (
    read_calculation,
    read_comparison,
    read_joined,
    read_left_over,
    read_share,
)
from app.adapters.providers.offline.reading.sums.clock_times import read_clock_times
from app.adapters.providers.offline.reading.sums.gaps import (
    read_gap,
    read_times_into,
    read_told_change,
)
from app.adapters.providers.offline.reading.sums.shapes import read_shape
from app.adapters.providers.offline.reading.sums.time_sums import SIGNS as TIME_SIGNS
from app.adapters.providers.offline.reading.sums.time_sums import read_time_sum
from app.adapters.providers.offline.reading.sums.time_units import read_time_units
from app.adapters.providers.offline.reading.sums.unit_conversions import UNIT_NAMES, read_conversion
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor

_Reads = Callable[[DateTerms], Action | Reading]


@dataclass(frozen=True, slots=True)
class Rule:
    """Reads one kind of question, or raises MisreadError."""

    read: _Reads
    needs: frozenset[str] = frozenset()
    """Words and signs of which one must be in the question; none if any question may do."""

    def may_apply(self, cursor: Cursor) -> bool:
        """Tell whether the question has any of the words that the rule needs."""
        return not self.needs or not cursor.vocabulary.isdisjoint(self.needs)


def _rule(read: _Reads, *needs: str) -> Rule:
    return Rule(read, frozenset(needs))


def _told(read: _Reads, *needs: str) -> Rule:
    """Return a rule for facts and then a question, with a sign or one of the words between."""
    return _rule(read, ",", ".", ";", ":", *needs)


_PERCENT = ("%", "percent", "percentage", "pct", "per", "cent")

RULES: Iterable[Rule] = (
    _rule(read_calculation),
    _rule(read_left_over, "left", "remains"),
    _rule(read_joined),
    _rule(read_share, *_PERCENT, "what", "which"),
    _rule(read_comparison, "which", "what"),
    _rule(read_gap, "how", "by"),
    _rule(read_times_into, "go", "goes", "fit", "fits"),
    _rule(read_day_question),
    _rule(read_plain_day),
    _rule(read_move),
    _rule(read_normalise),
    _rule(read_distance),
    _rule(read_leap_year),
    _rule(read_days_in, "days", "long"),
    _rule(read_age, "old", "age"),
    _rule(read_birthday, "turn", "become", "be"),
    _rule(read_time_units),
    _rule(read_day_fact, "iso", "calendar", "year", "quarter", "number"),
    _rule(read_day_order, "or", "earlier", "later", "sooner", "came", "comes"),
    _rule(read_weekday_total, *TOTAL_WORDS),
    _rule(read_time_now, "time"),
    _rule(read_conversion_of_time, *CLOCK_WORDS),
    _rule(read_time_later, *CLOCK_WORDS),
    _rule(read_elapsed, *CLOCK_WORDS),
    _rule(read_time_sum, *TIME_SIGNS),
    _rule(read_stock_question),
    _rule(read_stock_comparison, *VERDICT_WORDS),
    _rule(read_price_gap, "difference", "gap", "spread", "distance"),
)
ASIDE: Iterable[Rule] = (
    _rule(read_day_story, *date_words.UNIT_WORDS),
    _told(read_rate_question, "at", "for", "costing"),
    _rule(read_share_of_bill, *_PERCENT),
    _told(read_change),
    _rule(read_sharing, "share", "split", "divide", "shared", "divided", "distributed"),
    _rule(read_motion, "far", "distance", "speed", "fast", "long", "hours"),
    _told(read_told_change),
    _told(read_ledger),
    _rule(read_basket, "at", "for", "cost", "costs", "costing", "worth"),
    _told(read_percent_changes),
    _rule(read_interest, "interest", "compounded", "compounding"),
    _told(read_scaling),
    _rule(read_containers, "many"),
    _told(read_relation),
    _told(read_rate_chain),
    _told(read_total),
    _rule(read_shape, "area", "perimeter", "circumference", "volume"),
    _rule(read_number_story, ","),
    _rule(read_trade, "from", "sold", "sell", "sells", "resold"),
    _rule(read_conversion, *UNIT_NAMES.beginnings),
    _rule(read_weekday_count, *date_words.WEEKDAY_NAMES),
    _rule(read_clock_times, ":", "am", "pm"),
)
"""Problems: those that pass over words of which any may stand there."""

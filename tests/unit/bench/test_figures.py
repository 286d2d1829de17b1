"""The arithmetic behind every stated figure."""

import pytest

from bench.figures import Check, Grade, Samples, Target, ratio


def test_the_median_ignores_an_outlier() -> None:
    """One disturbed round does not move the figure."""
    assert Samples((3.0, 1.0, 2.0, 100.0, 2.5)).median == 2.5


def test_the_spread_is_the_middle_half_as_a_share_of_the_median() -> None:
    """Quartiles 2 and 4 round a median of 3."""
    assert Samples((1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)
    assert Samples((7.0,)).spread == 0.0
    assert Samples((0.0, 0.0)).spread == 0.0


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    """The smallest that covers so many percent of the values, whatever their order."""
    assert Samples(tuple(float(n) for n in range(100, 0, -1))).percentile(percent) == value


def test_a_ratio_compares_values_of_the_same_round() -> None:
    """A machine that slows down in between slows both sides and leaves the ratio alone."""
    ours, theirs = Samples((1.0, 10.0, 100.0)), Samples((2.0, 20.0, 200.0))

    assert ratio(ours, theirs) == 0.5


def test_a_ratio_needs_the_same_rounds() -> None:
    """Otherwise it would compare what was not measured side by side."""
    with pytest.raises(ValueError, match="longer"):
        ratio(Samples((1.0,)), Samples((1.0, 2.0)))


@pytest.mark.parametrize(
    ("value", "grade"),
    [(0.4, Grade.STRETCH), (0.41, Grade.MUST), (0.6, Grade.MUST), (0.61, Grade.MISSED)],
)
def test_a_value_at_the_limit_reaches_it(value: float, grade: Grade) -> None:
    """Must and stretch include their limits."""
    target = Target(must=0.6, stretch=0.4)

    assert Check(what="life", value=value, target=target).grade is grade


def test_a_target_may_be_a_floor() -> None:
    """For rates, more is better; without a stretch there is only reached and not."""
    target = Target(must=40, at_least=True)

    assert [target.grade(value) for value in (39, 40, 100)] == [
        Grade.MISSED,
        Grade.MUST,
        Grade.MUST,
    ]

"""The arithmetic of the benchmark figures."""

import pytest

from bench.figures import Check, Grade, Samples, Target, ratio


def test_the_median_ignores_an_outlier() -> None:
    """A single outlier does not change the median."""
    assert Samples((3.0, 1.0, 2.0, 100.0, 2.5)).median == 2.5


def test_the_spread_is_the_middle_half_as_a_share_of_the_median() -> None:
    """The spread is the interquartile range divided by the median."""
    assert Samples((1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)
    assert Samples((7.0,)).spread == 0.0
    assert Samples((0.0, 0.0)).spread == 0.0


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    """The p-th percentile is the smallest measured value that covers p percent of the values."""
    assert Samples(tuple(float(n) for n in range(100, 0, -1))).percentile(percent) == value


def test_a_ratio_compares_values_of_the_same_round() -> None:
    """The ratio is the median of per-round ratios, so a slower machine does not change it."""
    ours, theirs = Samples((1.0, 10.0, 100.0)), Samples((2.0, 20.0, 200.0))

    assert ratio(ours, theirs) == 0.5


def test_a_ratio_needs_the_same_rounds() -> None:
    """A ratio of different numbers of rounds is rejected, because rounds could not be paired."""
    with pytest.raises(ValueError, match="longer"):
        ratio(Samples((1.0,)), Samples((1.0, 2.0)))


@pytest.mark.parametrize(
    ("value", "grade"),
    [(0.4, Grade.STRETCH), (0.41, Grade.MUST), (0.6, Grade.MUST), (0.61, Grade.MISSED)],
)
def test_a_value_at_the_limit_reaches_it(value: float, grade: Grade) -> None:
    """A value equal to a limit reaches it."""
    target = Target(must=0.6, stretch=0.4)

    assert Check(what="life", value=value, target=target).grade is grade


def test_a_target_may_be_a_floor() -> None:
    """A target can be a lower limit; without a stretch there are only two grades."""
    target = Target(must=40, at_least=True)

    assert [target.grade(value) for value in (39, 40, 100)] == [
        Grade.MISSED,
        Grade.MUST,
        Grade.MUST,
    ]

"""Which tools may be used."""

import pytest

from app.tools.policy import ToolPolicy

NAMES = ("calendar", "calculator", "plotter")


def policy(allow: set[str] | None = None, deny: set[str] | None = None) -> ToolPolicy:
    """Return a policy of two lists."""
    return ToolPolicy(
        allow=None if allow is None else frozenset(allow), deny=frozenset(deny or set())
    )


@pytest.mark.req("002/23.1")
def test_without_an_allowlist_everything_is_allowed_and_an_empty_one_allows_nothing() -> None:
    """None is not the same as an empty list."""
    assert policy().usable(NAMES) == ("calculator", "calendar", "plotter")
    assert policy(allow=set()).usable(NAMES) == ()


@pytest.mark.req("002/23.1", "002/23.2")
def test_only_what_is_allowed_and_not_denied_may_be_used() -> None:
    """The denylist wins over the allowlist."""
    chosen = policy(allow={"calculator", "calendar"}, deny={"calendar"})

    assert chosen.usable(NAMES) == ("calculator",)
    assert not chosen.allows("calendar")
    assert not chosen.allows("plotter")


@pytest.mark.parametrize("first", [None, set(), {"calculator"}, {"calculator", "calendar"}])
@pytest.mark.parametrize("second", [None, set(), {"calendar"}, {"calculator", "plotter"}])
def test_a_narrowed_policy_allows_what_both_allow(
    first: set[str] | None, second: set[str] | None
) -> None:
    """An agent can be given less than the service allows, and never more."""
    one, other = policy(allow=first), policy(allow=second, deny={"plotter"})

    for name in NAMES:
        both = one.allows(name) and other.allows(name)
        assert one.narrowed(other).allows(name) == other.narrowed(one).allows(name) == both

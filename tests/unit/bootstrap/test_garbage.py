"""How a process looks for garbage."""

import gc
from collections.abc import Iterator

import pytest

from app.bootstrap.garbage import THRESHOLDS, look_for_garbage_seldom


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_a_process_was_started_with_is_left_alone() -> None:
    """And what comes later is looked at more rarely than usual."""
    usual = gc.get_threshold()
    look_for_garbage_seldom()

    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[0] == THRESHOLDS[0] > usual[0]

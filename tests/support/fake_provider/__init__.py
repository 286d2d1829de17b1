"""A model provider in a separate process, scripted by tests, whose record is their oracle."""

from tests.support.fake_provider.arrivals import Arrival
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import DEFAULT_PLAN, Step

__all__ = ["DEFAULT_PLAN", "Arrival", "FakeProvider", "Step"]

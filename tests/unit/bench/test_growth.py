"""The comparison of a small and a large database covers all routes and finds what grows."""

from bench.figures import Samples
from bench.growth.command import better
from bench.growth.measuring import NO_ROWS, Line
from bench.growth.routes import UNMEASURED, reads, unmeasured, writes
from bench.growth.table import summary, table
from tests.support.api import openapi_document


def test_every_route_is_measured_or_named_as_an_exception() -> None:
    """A new route needs a case in ``bench.growth.routes``, or a reason why it has none."""
    document = openapi_document()

    assert unmeasured(document, [*reads(document), *writes()]) == []
    assert unmeasured(document, list(reads(document))) != []


def test_every_exception_is_a_route() -> None:
    """An exception for a route that does not exist any more is removed."""
    paths = openapi_document()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    assert UNMEASURED.keys() <= routes


def test_a_line_above_twice_the_time_is_not_flat() -> None:
    """Medians and fastest requests must both grow, because medians vary on a busy machine."""
    flat = Line("flat", (Samples((1.0, 2.0)), Samples((1.9, 9.0))))
    grows = Line("grows", (Samples((1.0, 2.0)), Samples((2.1, 9.0))))
    first = Line("first", (Samples((1.0,)), Samples((1.0,))), first=(1.0, 3.0))
    missing = Line("missing", None, note=NO_ROWS)
    failed = Line("failed", None, note="/spend answered 422")
    lines = [flat, grows, first, missing, failed]

    assert [line.is_flat for line in lines] == [True, False, False, True, False]
    assert summary(lines).splitlines() == [
        "2 of 5 not flat (above 2x): grows; first.",
        "Failed: failed (/spend answered 422).",
        "Without rows: missing.",
    ]
    assert "| **grows** | **1.5** | **5.55** |" in table([grows], ("10", "20"))


def test_a_second_measurement_replaces_only_a_line_that_grows() -> None:
    """A failure stays, and a repeated line counts only if it is flat or failed."""
    flat = Line("a", (Samples((1.0,)), Samples((1.0,))))
    grows = Line("a", (Samples((1.0,)), Samples((3.0,))))
    failed = Line("a", None, note="/spend answered 422")
    empty = Line("a", None, note=NO_ROWS)

    assert better(grows, flat) is flat
    assert better(grows, failed) is failed
    assert better(grows, empty) is grows
    assert better(failed, flat) is failed

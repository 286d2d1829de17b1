"""The tables of fields in docs/gateway.md."""

import pytest

from tests.support.fields_page import PAGE, render_page


@pytest.mark.req("cw/3.fields")
def test_the_page_of_the_gateway_has_the_tables_of_fields() -> None:
    """Write them again: `make example`."""
    page = PAGE.read_text(encoding="utf-8")

    assert render_page(page) == page
    assert "| image | `<image_url>.image_url`" in page

"""Events of the console's streams, as a browser reads them."""

from __future__ import annotations

import pytest

from fencepost.server.http.console.page import event

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_no_text_adds_fields_to_an_event_or_ends_it(end: str) -> None:
    """A browser takes each of these as the end of a line (HTML standard, 9.2.6)."""
    text = event("live", f"a{end}event: reload{end}{end}b")
    assert text == "event: live\ndata: a\ndata: event: reload\ndata: \ndata: b\n\n"

"""The rows of the console's audit trail, and the search in them."""

from __future__ import annotations

import pytest

from fencepost.core.security.audit_events import NOTHING, Actor, Event, line
from fencepost.server.http.console.security import audit_row, matching
from fencepost.server.security.audit_reading import AuditLines

pytestmark = pytest.mark.unit

JOSE = line(0, Event.LOGIN_FAILED, Actor(principal="User:José"), NOTHING, {"reason": 'said "não"'}, failed=True)


@pytest.mark.parametrize("find", ["josé", "JOSÉ", "login.FAILED", "não", ""])
def test_a_search_finds_what_the_row_shows(find: str) -> None:
    assert matching(AuditLines([JOSE], True), find) == [audit_row(JOSE)]
    assert find.lower() in "\n".join(audit_row(JOSE)).lower()


def test_a_search_finds_nothing_else() -> None:
    assert matching(AuditLines([JOSE], True), "00e9") == []


@pytest.mark.parametrize("text", [b'{"principal":"\\ud800"}', b'{"other":"\\udfff"}', b"\xff", b"[1]"])
def test_any_line_of_the_file_can_be_sent_to_a_browser(text: bytes) -> None:
    assert "\n".join(audit_row(text)).encode()

"""Lines of the audit log as the console shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.core.security.audit_events import NOTHING, Actor, AuditTarget, Event, line
from fencepost.server.http.console.security import AuditLines, AuditRow, audit_row, last_of_file, matching

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


def test_a_line_becomes_a_row() -> None:
    actor, target = Actor("User:alice", "192.0.2.7:4711"), AuditTarget("WRITE", "TOPIC", "orders")
    written = line(0, Event.ACCESS_DENIED, actor, target, {"api": "Produce"}, failed=True)
    row = audit_row(written.rstrip(b"\n"))
    assert row[:4] == ("1970-01-01T00:00:00.000Z", "access.denied", "failure", "User:alice")
    assert row[4:6] == ("192.0.2.7:4711", "TOPIC orders")
    assert json.loads(row.more) == {"operation": "WRITE", "api": "Produce"}


@pytest.mark.parametrize("strange", [b"", b"no event", b"[1]", b"5", b"[" * 100_000, b'"\xff"'])
def test_anything_else_is_shown_as_it_is(strange: bytes) -> None:
    row = audit_row(strange)
    assert row == AuditRow("", "", "", "", "", "", strange.decode(errors="replace"))


def test_fields_of_other_types_do_no_harm() -> None:
    assert audit_row(b'{"time": 5, "event": ["x"], "principal": {}}')[:4] == ("5", "['x']", "", "{}")


def test_the_newest_lines_of_a_file_come_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert last_of_file(path) == ([b"three", b"two", b"one"], True)


def test_a_long_file_is_read_from_its_end_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(b"%09d\n" % number for number in range(100_000)))
    lines, is_whole = last_of_file(path)
    assert not is_whole
    assert lines[0] == b"%09d" % 99_999
    assert {len(each) for each in lines} == {9}
    assert [int(each) for each in lines] == list(range(99_999, 99_999 - len(lines), -1))
    assert len(lines) > 10_000

"""The audit log: nobody waits for it, nobody floods it, and what is lost is counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.own.ownership import OwnedResource
from fencepost.core.repeats import MOST_DEEDS
from fencepost.core.security.access import TOPIC_READ
from fencepost.core.security.audit_events import Actor, AuditTarget, Event
from fencepost.core.security.principal import Principal
from fencepost.errors import StorageError
from fencepost.server.process import line_thread
from fencepost.server.security import audit as audit_module
from fencepost.server.security.audit import _MOST_ABORTS, _MOST_EVENTS, _MOST_TAKEOVERS, Audit
from fencepost.server.security.audit_places import AuditPlace
from fencepost.types import Generation
from tests.support.clock import HandWoundClock

pytestmark = pytest.mark.unit

COMMON = [
    "time", "event", "outcome", "principal", "address", "client_id", "listener", "operation", "resource_type",
    "resource",
]  # fmt: skip


class Memory(AuditPlace):
    """A place for lines; it blocks or fails while a test wants that."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = threading.Event()
        self.opens.set()
        self.entered = threading.Event()
        self.written = threading.Condition()
        self.failures = 0
        self.lines: list[bytes] = []
        self.closed = False

    def _append(self, lines: list[bytes]) -> None:
        self.entered.set()
        self.opens.wait()
        if self.failures:
            self.failures -= 1
            raise StorageError("the disk is full")
        with self.written:
            self.lines += lines
            self.written.notify_all()

    def await_lines(self, count: int) -> None:
        with self.written:
            assert self.written.wait_for(lambda: len(self.lines) >= count, timeout=60)

    def close(self) -> None:
        self.closed = True

    def found(self, *events: Event) -> list[dict[str, Any]]:
        return [row for row in map(json.loads, self.lines) if not events or row["event"] in events]


@pytest.fixture
def place() -> Memory:
    return Memory()


@pytest.fixture
def reports() -> list[Exception | None]:
    return []


@pytest.fixture
def audit(place: Memory, reports: list[Exception | None]) -> Iterator[Audit]:
    made = Audit(HandWoundClock(), reports.append)
    made.use(place)
    yield made
    place.opens.set()
    made.close()


def connection(user: str = "alice", host: str = "192.0.2.7", port: int = 4711) -> Any:
    session = SimpleNamespace(
        principal=Principal("User", user), client_host=host, listener=SimpleNamespace(name="outside")
    )
    return SimpleNamespace(session=session, peer=f"{host}:{port}", client_id="job")


def test_a_line_has_the_common_fields_in_order_and_the_details_behind(audit: Audit, place: Memory) -> None:
    actor = Actor("User:alice", "192.0.2.7:4711", "job", "outside")
    audit.record(Event.TOPIC_DELETED, actor, AuditTarget("DELETE", "TOPIC", "orders\r\n\u2028"), topic_id="x")
    audit.close()
    raw, stopped = place.lines
    assert raw.count(b"\n") == 1
    assert raw.isascii()
    line = json.loads(raw)
    assert list(line) == [*COMMON, "topic_id"]
    assert line["time"] == "2023-11-14T22:13:20.000Z"
    assert (line["event"], line["outcome"], line["resource"]) == ("topic.deleted", "success", "orders\r\n\u2028")
    assert list(json.loads(stopped)) == COMMON
    assert place.closed


def test_long_texts_are_cut(audit: Audit, place: Memory) -> None:
    audit.login_failed(connection(), "x" * 100_000, "PLAIN", "no")
    audit.close()
    assert len(place.lines[0]) < 2000


def test_a_repeated_refusal_is_one_line_and_a_count(audit: Audit, place: Memory) -> None:
    for port in range(1000):
        audit.denied(connection(port=port), "Fetch", TOPIC_READ, "orders")
    audit.denied(connection(), "Fetch", TOPIC_READ, "other")
    audit.denied(connection(user="bob"), "Fetch", TOPIC_READ, "orders")
    audit.close()
    rows = [(row["principal"], row["resource"], row.get("count")) for row in place.found(Event.ACCESS_DENIED)]
    assert rows == [
        ("User:alice", "orders", None),
        ("User:alice", "other", None),
        ("User:bob", "orders", None),
        ("User:alice", "orders", 999),
    ]


def test_guesses_of_many_names_are_one_culprits(audit: Audit, place: Memory) -> None:
    for number in range(1000):
        audit.login_failed(connection("ANONYMOUS"), f"user{number}", "PLAIN", "invalid username or password")
    audit.close()
    rows = place.found(Event.LOGIN_FAILED)
    assert len(rows) == MOST_DEEDS + 1
    assert rows[0]["principal"] == "User:user0"
    assert (rows[-1]["principal"], rows[-1]["count"]) == (None, 1000 - MOST_DEEDS)


def test_nobody_waits_and_what_does_not_fit_is_counted_but_first_refusals_are_kept(audit: Audit, place: Memory) -> None:
    place.opens.clear()
    audit.record(Event.SERVER_STARTED)
    place.entered.wait()
    for _ in range(_MOST_EVENTS + 5):
        audit.record(Event.LOGIN_SUCCEEDED)
    for number in range(50):
        audit.denied(connection(host=f"192.0.2.{number}"), "Fetch", TOPIC_READ, "orders")
    place.opens.set()
    audit.close()
    assert len(place.found(Event.LOGIN_SUCCEEDED)) == _MOST_EVENTS
    assert [row["count"] for row in place.found(Event.AUDIT_DROPPED)] == [5]
    assert len(place.found(Event.ACCESS_DENIED)) == 50


def test_a_place_that_fails_is_tried_again_and_nothing_is_lost(
    audit: Audit, place: Memory, reports: list[Exception | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(line_thread, "_LOOK_SECONDS", 0.01)
    place.failures = 3
    audit.record(Event.SERVER_STARTED)
    while None not in reports:
        place.entered.wait()
    audit.close()
    assert len(place.found(Event.SERVER_STARTED)) == 1
    assert [str(each) for each in reports if each is not None] == ["the disk is full"] * 3


def test_a_place_that_fails_does_not_stop_the_other_and_its_lines_wait(
    audit: Audit, place: Memory, reports: list[Exception | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_MOST_EVENTS", 10)
    broken = Memory()
    broken.failures = 1  # the clock stands still, so the place is not tried again before the end
    audit.use(broken, place)
    for number in range(25):
        audit.record(Event.TOPIC_DELETED)
        place.await_lines(number + 1)
    assert broken.lines == []
    audit.close()
    rows = broken.found()
    assert [row["event"] for row in rows] == ["topic.deleted"] * 10 + ["server.stopped", "audit.dropped"]
    assert rows[-1]["count"] == 15
    assert [row["event"] for row in place.found()] == ["topic.deleted"] * 25 + ["server.stopped"]
    assert [str(each) for each in reports] == ["the disk is full", "None"]


def test_the_lines_that_wait_are_limited_in_bytes_too(
    audit: Audit, place: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_MOST_BYTES", 1000)
    broken = Memory()
    broken.failures = 1
    audit.use(broken, place)
    for number in range(5):
        audit.record(Event.TOPIC_DELETED, target=AuditTarget(resource="x" * 300))
        place.await_lines(number + 1)
    audit.close()
    assert [row["count"] for row in broken.found(Event.AUDIT_DROPPED)] == [5 - len(broken.found(Event.TOPIC_DELETED))]
    assert 0 < len(broken.found(Event.TOPIC_DELETED)) < 4


def test_what_a_replaced_place_has_not_taken_goes_to_the_new_one(audit: Audit, place: Memory) -> None:
    broken, new = Memory(), Memory()
    broken.failures = 1
    audit.use(broken, place)
    audit.record(Event.TOPIC_DELETED)
    place.await_lines(1)
    audit.use(new, place)
    audit.close()
    assert broken.lines == []
    for each in (new, place):
        assert [row["event"] for row in each.found()] == ["topic.deleted", "server.stopped"]


def test_logins_that_repeat_themselves_are_one_line_and_a_count(audit: Audit, place: Memory) -> None:
    for port in range(60):
        audit.login_succeeded(connection(port=port), "PLAIN")
    audit.login_succeeded(connection(), "SCRAM-SHA-512")
    audit.login_succeeded(connection(host="192.0.2.8"), "PLAIN")
    audit.login_succeeded(connection(user="bob"), "PLAIN")
    audit.close()
    rows = place.found(Event.LOGIN_SUCCEEDED)
    assert [(row["principal"], row["address"], row["mechanism"], row["outcome"], row.get("count")) for row in rows] == [
        ("User:alice", "192.0.2.7:0", "PLAIN", "success", None),
        ("User:alice", "192.0.2.7:4711", "SCRAM-SHA-512", "success", None),
        ("User:alice", "192.0.2.8:4711", "PLAIN", "success", None),
        ("User:bob", "192.0.2.7:4711", "PLAIN", "success", None),
        ("User:alice", "192.0.2.7", "PLAIN", "success", 59),
    ]


def owned(*names: str) -> list[OwnedResource]:
    return [OwnedResource(name, Generation(number), 7 + number) for number, name in enumerate(names)]


def test_two_that_sever_each_other_for_ever_are_two_lines_and_counts(audit: Audit, place: Memory) -> None:
    """The claimant chooses how often it takes over, and must not push older lines out."""
    for number in range(1000):
        alice, bob = connection("alice", port=number), connection("bob", port=number)
        audit.owner_severed(alice, "crew", owned("lamp"), "another owner takes over", bob)
        audit.owner_severed(bob, "crew", owned("lamp"), "another owner takes over", alice)
    audit.close()
    rows = place.found(Event.OWNER_SEVERED)
    assert [(row["principal"], row["severed_principal"], row["resource"], row.get("count")) for row in rows] == [
        ("User:bob", "User:alice", "crew", None),
        ("User:alice", "User:bob", "crew", None),
        ("User:bob", "User:alice", "crew", 999),
        ("User:alice", "User:bob", "crew", 999),
    ]
    assert {row["outcome"] for row in rows} == {"success"}
    assert rows[0]["resources"] == [{"resource": "lamp", "generation": 0, "token": 7}]


def test_a_standby_that_takes_over_much_has_a_line_for_each_owner(audit: Audit, place: Memory) -> None:
    for number in range(_MOST_TAKEOVERS + 5):
        audit.owner_severed(connection("alice"), "crew", owned(f"lamp-{number}"), "taken over", connection("bob"))
    audit.close()
    rows = place.found(Event.OWNER_SEVERED)
    named = [row["resources"][0]["resource"] for row in rows if "resources" in row]
    assert named == [f"lamp-{number}" for number in range(_MOST_TAKEOVERS)]
    assert [row["count"] for row in rows if "count" in row] == [5]


def test_only_the_first_takeover_of_a_period_names_all_resources(audit: Audit, place: Memory) -> None:
    many = [f"lamp-{number}" for number in range(2000)]
    for names in (many, many[::-1]):
        audit.owner_severed(connection("alice"), "crew", owned(*names), "taken over", connection("bob"))
    audit.close()
    rows = place.found(Event.OWNER_SEVERED)
    assert [(len(row["resources"]), row["resource_count"]) for row in rows] == [(1000, 2000), (20, 2000)]


def test_an_owner_that_the_server_severs_again_and_again_is_one_line(audit: Audit, place: Memory) -> None:
    for port in range(50):
        audit.owner_severed(connection("alice", port=port), "crew", owned("lamp"), "silent", None)
    audit.owner_severed(connection("bob"), "crew", owned("lamp"), "silent", None)
    audit.close()
    rows = place.found(Event.OWNER_SEVERED)
    assert [(row["principal"], row["severed_principal"], row.get("count")) for row in rows] == [
        (None, "User:alice", None),
        (None, "User:bob", None),
        (None, "User:alice", 49),
    ]


def test_a_client_that_aborts_one_transaction_after_the_other_is_one_line(audit: Audit, place: Memory) -> None:
    for epoch in range(50):
        audit.transaction_aborted(connection("alice", port=epoch), "InitProducerId", "payments", 7, epoch)
    audit.transaction_aborted(connection("bob"), "InitProducerId", "payments", 7, 50)
    audit.close()
    rows = place.found(Event.TRANSACTION_ABORTED)
    assert [(row["principal"], row["resource"], row.get("producer_epoch"), row.get("count")) for row in rows] == [
        ("User:alice", "payments", 0, None),
        ("User:bob", "payments", 50, None),
        ("User:alice", "payments", None, 49),
    ]
    assert {row["outcome"] for row in rows} == {"success"}


def test_not_every_transactional_id_of_a_flood_has_its_own_line(audit: Audit, place: Memory) -> None:
    for number in range(_MOST_ABORTS + 100):
        audit.transaction_aborted(connection("alice"), "InitProducerId", f"id-{number}", number, 0)
    audit.close()
    rows = place.found(Event.TRANSACTION_ABORTED)
    assert len(rows) == _MOST_ABORTS + 1
    assert rows[-1]["count"] == 100


def test_a_place_that_a_reload_replaces_is_closed(audit: Audit, place: Memory) -> None:
    other = Memory()
    audit.use(other)
    audit.record(Event.CONFIG_RELOADED)
    audit.use()
    audit.record(Event.CONFIG_RELOADED)
    audit.close()
    assert place.closed
    assert other.closed


def test_without_a_place_nothing_happens(reports: list[Exception | None]) -> None:
    off = Audit(HandWoundClock(), reports.append)
    off.record(Event.TOPIC_DELETED)
    off.denied(connection(), "Fetch", TOPIC_READ, "orders")
    off.close()
    assert not off.is_on

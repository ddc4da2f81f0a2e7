"""Throttling by quotas: the answer names the time, the connection is muted for it, and nobody else waits.

Every client here has a client id of its own, and its quotas are for that id.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.wire.messages import ms
from tests.integration.conftest import TestedServer
from tests.support.batches import batch
from tests.support.logins import add_users, log_in, login_listener
from tests.support.quotas import alter
from tests.support.raw import CREATE_TOPICS, DELETE_TOPICS, ConnectionEnded, RawClient, new_topic

pytestmark = pytest.mark.integration

CREATE_PARTITIONS = 37
LIST_GROUPS = 16
BURST_MS = 1
"""On the server of these tests no burst is free, so that throttling begins with the first byte."""
OFTEN = 1_000_000
"""A rate of connections that is never exceeded: without a burst the default would refuse some of these tests."""
FOR_LONG = 1.0
"""A rate at which a request of some kilobytes is throttled for the rest of the test."""


@pytest.fixture(scope="module")
def _address() -> Iterator[str]:
    with fencepost.Server(quota_burst_ms=BURST_MS, max_connection_rate_per_address=OFTEN) as server:
        yield server.address


@pytest.fixture
def strict(_address: str) -> TestedServer:
    return TestedServer("fencepost", _address)


def produce(client: RawClient, topic: str, size: int, **how: Any) -> int:
    """Writes a record, and returns the throttle time of the answer."""
    client.send_produce(topic, batch([bytes(size)]), **how)
    _, answer = client.receive()
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    throttle_ms: int = answer.throttle_ms
    return throttle_ms


def fetch(client: RawClient, topic: str) -> int:
    client.send_fetch(topic, 0)
    _, answer = client.receive()
    throttle_ms: int = answer.throttle_ms
    return throttle_ms


def until_throttled(server: TestedServer, client_id: str, attempt: Callable[[RawClient], int]) -> int:
    """Kafka's broker applies a quota a moment after it has answered. A throttled client is muted, so each attempt has a
    connection of its own."""
    while True:
        with server.connect(client_id=client_id) as client:
            throttle_ms = attempt(client)
            if throttle_ms:
                return throttle_ms


def test_a_producer_above_its_rate_hears_how_long_it_is_throttled(
    server: TestedServer, client: RawClient, topic: str, name: str
) -> None:
    assert alter(client, {"client_id": name}, producer_byte_rate=1000) is ErrorCode.NONE
    # Ten seconds' worth are free on both servers, so that the rest of each record takes about twenty.
    throttle_ms = until_throttled(server, name, lambda slow: produce(slow, topic, 30_000))
    assert throttle_ms >= 10_000


def test_a_reader_above_its_rate_is_throttled(server: TestedServer, client: RawClient, topic: str, name: str) -> None:
    client.produce(topic, batch([bytes(30_000)]))
    assert alter(client, {"client_id": name}, consumer_byte_rate=1000) is ErrorCode.NONE
    assert until_throttled(server, name, lambda slow: fetch(slow, topic)) > 0


def test_a_client_that_takes_too_much_time_is_throttled(server: TestedServer, client: RawClient, name: str) -> None:
    assert alter(client, {"client_id": name}, request_percentage=0.000001) is ErrorCode.NONE

    def ask(slow: RawClient) -> int:
        return ms(slow.call(LIST_GROUPS, 1).throttle_time)

    assert 0 < until_throttled(server, name, ask) <= 1000


def test_a_client_that_creates_too_many_partitions_is_refused(
    server: TestedServer, client: RawClient, topic: str, name: str
) -> None:
    assert alter(client, {"client_id": name}, controller_mutation_rate=0.01) is ErrorCode.NONE
    made: list[str] = []

    def create(slow: RawClient) -> int:
        made.append(f"{name}-{len(made)}")
        answer = slow.call(CREATE_TOPICS, 7, topics=[new_topic(made[-1])], timeout=30_000, validate_only=False)
        if answer.topics[0].error_code == ErrorCode.NONE:
            return 0
        assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return ms(answer.throttle_time)

    assert until_throttled(server, name, create) > 0
    with server.connect(client_id=name) as slow:
        row = {"name": topic, "count": 2, "assignments": None}
        answer = slow.call(CREATE_PARTITIONS, 3, topics=[row], timeout=30_000, validate_only=False)
        assert answer.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with server.connect(client_id=name) as slow:
        answer = slow.call(DELETE_TOPICS, 5, topic_names=[topic], timeout=30_000)
        assert answer.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with server.connect(client_id=name) as slow:  # an older client does not know the code, and is muted instead
        topics = [new_topic(f"{name}-old")]
        answer = slow.call(CREATE_TOPICS, 5, topics=topics, timeout=30_000, validate_only=False)
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert ms(answer.throttle_time) > 0


# -- what only our server is asked ---------------------------------------------------------------------------------


def test_a_muted_connection_waits_and_another_does_not(strict: TestedServer, name: str) -> None:
    with strict.connect() as other, strict.connect(client_id=name) as slow:
        other.create_topic(name)
        alter(other, {"client_id": name}, producer_byte_rate=FOR_LONG)
        assert produce(slow, name, 5000) > 1_000_000
        slow.send(LIST_GROUPS, 1)
        for _ in range(10):
            assert produce(other, name, 5000) == 0
        assert not slow.has_answer()


def test_a_muted_connection_goes_on_after_its_time(strict: TestedServer, name: str) -> None:
    with strict.connect() as other, strict.connect(client_id=name) as slow:
        other.create_topic(name)
        alter(other, {"client_id": name}, producer_byte_rate=20_000)
        began = time.monotonic()  # and not after the answer, which this thread may read late
        throttle_ms = produce(slow, name, 10_000)
        assert throttle_ms > 400
        slow.call(LIST_GROUPS, 1)
        assert time.monotonic() - began > throttle_ms / 1000 * 0.9


def test_a_producer_that_wants_no_answer_is_muted_too(strict: TestedServer, name: str) -> None:
    with strict.connect() as other, strict.connect(client_id=name) as slow:
        other.create_topic(name)
        alter(other, {"client_id": name}, producer_byte_rate=FOR_LONG)
        slow.send_produce(name, batch([bytes(5000)]), acks=0)
        slow.send(LIST_GROUPS, 1)
        while not other.fetch(name, 0).data:
            pass
        other.call(LIST_GROUPS, 1)
        assert not slow.has_answer()


def test_requests_behind_one_that_is_throttled_are_not_started(strict: TestedServer, name: str) -> None:
    with strict.connect() as other, strict.connect(client_id=name) as slow:
        other.create_topic(name)
        alter(other, {"client_id": name}, producer_byte_rate=FOR_LONG)
        for _ in range(3):
            slow.send_produce(name, batch([bytes(5000)]))
        slow.receive()
        assert len(other.fetch(name, 0).headers) == 1


def test_a_quota_of_a_user_is_shared_by_its_client_ids(tmp_path: Path) -> None:
    add_users(tmp_path, {"alice": "secret", "bob": "secret"})
    with (
        fencepost.Server(tmp_path, listeners=login_listener("PLAIN"), quota_burst_ms=BURST_MS) as server,
        log_in(server.address, "bob", "secret") as bob,
        log_in(server.address, "alice", "secret") as first,
        log_in(server.address, "alice", "secret") as second,
    ):
        bob.create_topic("shared")
        alter(bob, {"user": "alice"}, producer_byte_rate=1_000_000_000)
        assert produce(second, "shared", 1) == 0, "it is not new when the debt begins"
        alter(bob, {"user": "alice"}, producer_byte_rate=FOR_LONG)
        assert produce(first, "shared", 5000) > 1_000_000
        assert produce(second, "shared", 1) > 1_000_000, "the debt of the other connection counts"
        assert produce(bob, "shared", 5000) == 0


@pytest.mark.parametrize("writes", [True, False])
def test_a_client_does_not_escape_its_debt_with_a_new_connection(strict: TestedServer, name: str, writes: bool) -> None:
    with strict.connect() as other:
        other.create_topic(name)
        other.produce(name, batch([bytes(5000)]))
        alter(other, {"client_id": name}, producer_byte_rate=FOR_LONG, consumer_byte_rate=FOR_LONG)
        with strict.connect(client_id=name) as slow:
            assert (produce(slow, name, 5000) if writes else fetch(slow, name)) > 1_000_000
        with strict.connect(client_id=name) as again:
            again.call(LIST_GROUPS, 1)
            if writes:
                again.send_produce(name, batch([bytes(5000)]))
            else:
                again.send_fetch(name, 0)
            for _ in range(10):
                assert produce(other, name, 1) == 0
            assert not again.has_answer()
            assert len(other.fetch(name, 0).headers) == 11 + writes


def test_a_new_connection_goes_on_in_order_when_the_debt_is_paid(strict: TestedServer, name: str) -> None:
    with strict.connect() as other, strict.connect(client_id=name) as slow, strict.connect(client_id=name) as again:
        other.create_topic(name)
        alter(other, {"client_id": name}, producer_byte_rate=20_000)
        began = time.monotonic()  # and not after the answer, which this thread may read late
        throttle_ms = produce(slow, name, 10_000)
        assert throttle_ms > 400
        sent = [again.send(LIST_GROUPS, 1), again.send_produce(name, batch([b"a"])), again.send(LIST_GROUPS, 1)]
        assert [again.receive()[0] for _ in sent] == sent
        assert time.monotonic() - began > throttle_ms / 1000 * 0.9
        assert len(other.fetch(name, 0).headers) == 2


def test_the_server_notices_that_a_muted_client_has_hung_up(tmp_path: Path) -> None:
    with fencepost.Server(
        tmp_path, quota_burst_ms=BURST_MS, max_connection_rate_per_address=OFTEN, max_connections_per_address=2
    ) as server:
        other, slow = RawClient(server.address), RawClient(server.address, client_id="slow")
        with other:
            other.create_topic("topic")
            alter(other, {"client_id": "slow"}, producer_byte_rate=FOR_LONG)
            with slow:
                assert produce(slow, "topic", 5000) > 1_000_000
                slow.send(LIST_GROUPS, 1)
            until = time.monotonic() + 30
            while True:
                assert time.monotonic() < until, "the connection is still counted"
                with contextlib.suppress(OSError, ConnectionEnded), RawClient(server.address) as third:
                    third.call(LIST_GROUPS, 1)
                    break


def test_without_its_quota_a_client_is_no_longer_throttled(strict: TestedServer, name: str) -> None:
    with strict.connect() as other:
        other.create_topic(name)
        alter(other, {"client_id": name}, producer_byte_rate=FOR_LONG)
        with strict.connect(client_id=name) as slow:
            assert produce(slow, name, 5000) > 0
        alter(other, {"client_id": name}, producer_byte_rate=None)
        with strict.connect(client_id=name) as slow:
            assert produce(slow, name, 5000) == 0


def test_a_server_that_stops_answers_what_a_muted_client_has_sent(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path, quota_burst_ms=BURST_MS, drain_ms=60_000) as server:
        other, slow = RawClient(server.address), RawClient(server.address, client_id="slow")
        other.create_topic("topic")
        alter(other, {"client_id": "slow"}, producer_byte_rate=FOR_LONG)
        slow.send_produce("topic", batch([bytes(5000)]))
        sent = slow.send(LIST_GROUPS, 1)
        slow.receive()
        other.close()
    with slow:
        assert slow.receive()[0] == sent


def test_a_server_that_stops_handles_what_waits_for_a_debt(tmp_path: Path) -> None:
    with fencepost.Server(
        tmp_path, quota_burst_ms=BURST_MS, max_connection_rate_per_address=OFTEN, drain_ms=60_000
    ) as server:
        other, slow, again = (RawClient(server.address, client_id=name) for name in ("other", "slow", "slow"))
        other.create_topic("topic")
        alter(other, {"client_id": "slow"}, producer_byte_rate=FOR_LONG)
        assert produce(slow, "topic", 5000) > 1_000_000
        again.call(LIST_GROUPS, 1)
        sent = again.send_produce("topic", batch([b"a"]))
        other.call(LIST_GROUPS, 1)
        slow.close()
        other.close()
    with again:
        assert again.receive()[0] == sent

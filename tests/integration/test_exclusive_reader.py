"""Readers with `exclusive`: what the group assigns is owned too, on fencepost's server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import fencepost
from fencepost import Admin, Fenced, Producer, Reader, TimedOut, TopicPartition
from fencepost.core.groups.holding import NEVER, Holding
from tests.support.group_workers import PATIENCE
from tests.support.proxy import Proxy
from tests.support.scripted.fates import Api, Fate

pytestmark = pytest.mark.integration


@pytest.fixture
def server(fencepost_server_factory: Callable[..., fencepost.Server]) -> fencepost.Server:
    return fencepost_server_factory(
        group_consumer_session_timeout_ms=1000,
        group_consumer_heartbeat_interval_ms=200,
        group_min_session_timeout_ms=100,
    )


def write(server: fencepost.Server, topic: str, *values: str) -> None:
    with Producer(server.address) as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def values(reader: Reader, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in reader.poll(PATIENCE) or ()]
    return found


def test_the_server_serves_no_fetch_of_a_reader_that_was_replaced(
    server: fencepost.Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reader hears nothing from its coordinator and has no lease, so nothing but the server stops it."""
    with Admin(server.address) as admin:
        admin.create_topic(name, 1)
    write(server, name, "first")

    def renew_for_ever(holding: Holding, lease_end: float) -> None:
        holding.lease_end = NEVER

    monkeypatch.setattr(Holding, "renew", renew_for_ever)
    with Proxy(server.address) as proxy, Reader(proxy.address, name, group=name, exclusive=True) as first:
        assert values(first, 1) == [b"first"]
        first.commit()
        proxy.choose = lambda key: Fate.IGNORE if key == Api.CONSUMER_GROUP_HEARTBEAT else Fate.ANSWER
        with Reader(server.address, name, group=name, exclusive=True) as second:
            partition = TopicPartition(name, 0)
            before = first.tokens[partition]
            write(server, name, "second")
            assert values(second, 1) == [b"second"]
            assert second.tokens[partition] > before
            assert first.assignment == second.assignment == {partition}  # the first does not know
            with pytest.raises(Fenced):
                first.poll(PATIENCE)
            write(server, name, "third")
            with pytest.raises(Fenced):
                first.poll(PATIENCE)
            with pytest.raises(Fenced):
                first.commit({partition: 7})
            assert values(second, 1) == [b"third"]


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.LOSE])
def test_a_connection_that_ends_during_the_claim_costs_nothing(server: fencepost.Server, name: str, fate: Fate) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(name, 1)
    write(server, name, "a", "b")
    told: list[frozenset[TopicPartition]] = []
    with Proxy(server.address) as proxy:
        proxy.next(Api.OWN, fate, fate)
        with Reader(proxy.address, name, group=name, exclusive=True, on_assigned=told.append) as reader:
            assert values(reader, 2) == [b"a", b"b"]
            assert told == [{TopicPartition(name, 0)}]


def test_a_connection_that_ends_during_the_release_lets_the_partition_go(server: fencepost.Server, name: str) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(name, 2)
    write(server, name, "a")
    with Proxy(server.address) as proxy, Reader(proxy.address, name, group=name, exclusive=True) as first:
        assert values(first, 1) == [b"a"]
        with Reader(server.address, name, group=name, exclusive=True) as second:
            proxy.next(Api.OWN, Fate.LOSE)
            with pytest.raises(Fenced):  # the connection was its hold on the other partition
                values(first, 1)
            first.close()
            while len(second.assignment) < 2:
                with suppress(TimedOut):
                    second.poll(0.1)

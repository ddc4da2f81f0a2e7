"""Single records by their offsets: what a sink has staged."""

from __future__ import annotations

import random

import pytest

from fencepost import Admin, Producer
from fencepost.client.admin_client import HIGH_WATERMARK
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.ranges import DataLost, Picked, Range, fetch, fetch_values
from fencepost.kernel import decode_batch
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy

pytestmark = pytest.mark.integration


def written(address: str, topic: str, sizes: list[int]) -> dict[Picked, bytes]:
    """Records of these sizes, spread over two partitions; small ones share a batch."""
    with Producer(address, batch_size=100_000, max_request_size=4 << 20) as producer:
        values = [random.Random(size).randbytes(size) for size in sizes]
        sent = [producer.send(topic, value, partition=number % 2) for number, value in enumerate(values)]
        places = [ticket.result() for ticket in sent]
    return {
        Picked(TopicPartition(topic, place.partition), place.offset, len(value)): value
        for place, value in zip(places, values, strict=True)
    }


def test_records_come_in_the_order_asked_for_whatever_lies_between(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin, Routes(ClientSettings.of(server.address)) as routes:
        admin.create_topic(name, 2)
        there = written(server.address, name, [3, 90_000, 5, 7, 500_000, 40_000, 1, 300_000, 0, 60_000])
        wanted = list(there)
        random.Random(7).shuffle(wanted)
        for ahead in (1, 200_000, 8 << 20):
            assert list(fetch_values(routes, wanted, ahead_bytes=ahead)) == [there[each] for each in wanted]
        assert list(fetch_values(routes, [])) == []


def test_a_record_that_is_gone_is_data_lost(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin, Routes(ClientSettings.of(server.address)) as routes:
        admin.create_topic(name, 2)
        first, second, *_ = written(server.address, name, [100, 100, 100, 100])
        admin.delete_records(name, {0: 1, 1: HIGH_WATERMARK})
        with pytest.raises(DataLost, match="offset 0 does not exist any more"):
            list(fetch_values(routes, [first]))
        for lost in (second, first._replace(offset=2), first._replace(offset=50)):  # the first is at the log's end
            with pytest.raises(DataLost):
                list(fetch_values(routes, [lost], patience=0.1))
        admin.delete_topic(name)
        with pytest.raises(DataLost, match="does not exist any more"):
            list(fetch_values(routes, [first], patience=0.1))


def test_a_lost_connection_is_opened_again_and_no_record_comes_twice(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(name, 2)
    there = written(server.address, name, [20_000] * 20)
    with Proxy(server.address) as proxy, Routes(ClientSettings.of(proxy.address)) as routes:
        found = []
        for value in fetch_values(routes, list(there), ahead_bytes=100_000):
            found.append(value)
            if len(found) in (5, 12):
                proxy.cut()
        assert found == list(there.values())


def test_a_range_is_whole_although_its_connection_is_lost_again_and_again(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(name, 1)
    with Producer(server.address, linger=0.0) as producer:
        for number in range(40):
            producer.send(name, b"%d" % number, partition=0).result()
    with Proxy(server.address) as proxy, Routes(ClientSettings.of(proxy.address)) as routes:
        found = []
        for batches in fetch(routes, Range(name, 0, 0, 40), max_bytes=1):
            found += [record.value for batch in batches for record in decode_batch(batch.data)]
            if len(found) % 7 == 0:
                proxy.cut()
    assert found == [b"%d" % number for number in range(40)]

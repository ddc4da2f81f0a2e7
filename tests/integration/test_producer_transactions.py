"""Transactions of the producer, on fencepost's server and on Apache Kafka: all of it, or nothing."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import Closed, ConfigError, ErrorCode, Expired, Fenced, FencepostError, SendFailed, Undelivered
from fencepost.server.api import APIS
from fencepost.server.server import Server
from fencepost.types import Offset, TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.group_client import await_offsets
from tests.support.kafka import KafkaBroker, running
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Api, Fate

pytestmark = pytest.mark.integration


def committed(server: TestedServer, topic: str, count: int) -> list[bytes | None]:
    """What a reader of committed records sees, once there are that many: markers are written after the answer."""
    with Reader(server.address, topic) as reader:
        assert len(list(islice(reader, count))) == count
    with Reader(server.address, topic, stop="latest") as reader:
        return [record.value for record in reader]


def test_a_transaction_appears_when_its_block_ends_and_not_before(server: TestedServer, topic: str) -> None:
    with Producer(server.address, name=topic) as producer:
        with producer.transaction():
            ticket = producer.send(topic, b"a")
            producer.send(topic, b"b")
            assert ticket.result(30).offset == 0
            assert committed(server, topic, 0) == []
        assert committed(server, topic, 2) == [b"a", b"b"]


def test_many_transactions_follow_each_other_over_several_partitions(
    server: TestedServer, client: RawClient, name: str
) -> None:
    client.create_topic(name, partitions=3)
    with Producer(server.address, name=name) as producer:
        for number in range(10):
            with producer.transaction():
                for partition in range(3):
                    producer.send(name, b"%d" % number, partition=partition)
    assert sorted(committed(server, name, 30)) == sorted([b"%d" % number for number in range(10)] * 3)  # type: ignore[type-var]


def test_an_exception_aborts_and_the_next_transaction_is_not_disturbed(server: TestedServer, topic: str) -> None:
    with Producer(server.address, name=topic) as producer:
        for number in range(4):
            try:
                with producer.transaction():
                    producer.send(topic, b"%d" % number).result(30)
                    unsent = producer.send(topic, b"also %d" % number)
                    if number % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                unsent.exception(30)  # sent by then, or dropped: settled in either case
        producer.flush()  # what was aborted on purpose is nobody's undelivered record
    assert committed(server, topic, 4) == [b"0", b"also 0", b"2", b"also 2"]


def test_an_empty_transaction_and_one_aborted_before_it_wrote_cost_nothing(server: TestedServer, topic: str) -> None:
    with Producer(server.address, name=topic) as producer:
        with producer.transaction():
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction():
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(topic, b"v")
    assert committed(server, topic, 1) == [b"v"]


def test_records_outside_of_a_transaction_appear_at_once(server: TestedServer, topic: str) -> None:
    with Producer(server.address, name=topic) as producer:
        producer.send(topic, b"before").result(30)
        assert committed(server, topic, 1) == [b"before"]
        with producer.transaction():
            producer.send(topic, b"in it")
        producer.send(topic, b"after").result(30)
    assert committed(server, topic, 3) == [b"before", b"in it", b"after"]


def test_offsets_are_part_of_the_transaction(server: TestedServer, client: RawClient, topic: str, name: str) -> None:
    group, source = f"{name}-group", TopicPartition(topic, 0)
    with Producer(server.address, name=name) as producer:
        with producer.transaction():
            producer.send(topic, b"v")
            producer.send_offsets(group, {source: Offset(7)})
        with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012
            producer.send_offsets(group, {source: Offset(9)})
            raise ZeroDivisionError
        with producer.transaction():  # offsets alone are a transaction, too
            producer.send_offsets(group, {source: Offset(8)})
    with Admin(server.address) as admin:
        await_offsets(admin, group, [8])


def test_a_second_producer_of_the_name_fences_the_first_for_good(server: TestedServer, topic: str) -> None:
    """IDEM-5."""
    first, second = Producer(server.address, name=topic), Producer(server.address, name=topic)
    with pytest.raises(Fenced), first.transaction():  # noqa: PT012
        first.send(topic, b"of the first").result(30)
        with second.transaction():
            second.send(topic, b"of the second")
    with pytest.raises(Fenced):
        first.send(topic, b"again")
    with pytest.raises(Fenced), first.transaction():
        raise AssertionError("not reached")
    with second.transaction():  # the first one's end has not disturbed it
        second.send(topic, b"goes on")
    assert committed(server, topic, 2) == [b"of the second", b"goes on"]
    second.close()
    first.close()


def test_a_fenced_producer_that_only_aborts_does_not_take_the_name_back(server: TestedServer, topic: str) -> None:
    """IDEM-5."""
    first, second = Producer(server.address, name=topic), Producer(server.address, name=topic)
    with pytest.raises(ZeroDivisionError), first.transaction():  # noqa: PT012
        first.send(topic, b"of the first").result(30)
        with second.transaction():
            second.send(topic, b"1")
        raise ZeroDivisionError  # it has not heard of the second
    with second.transaction():
        second.send(topic, b"2")
    with pytest.raises(Fenced):
        first.send(topic, b"late").result(30)
    assert committed(server, topic, 2) == [b"1", b"2"]
    first.close()
    second.close()


def test_a_failed_record_fails_the_transaction_and_a_new_one_may_begin(
    server: TestedServer, client: RawClient, name: str
) -> None:
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    with Producer(server.address, name=name) as producer:
        with pytest.raises(SendFailed) as raised, producer.transaction():  # noqa: PT012
            producer.send(name, b"small")
            producer.send(name, b"x" * 2000)
        assert "MESSAGE_TOO_LARGE" in str(raised.value)
        with producer.transaction():
            producer.send(name, b"fine")
    assert committed(server, name, 1) == [b"fine"]


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.LOSE])
@pytest.mark.parametrize("api", [Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN])
def test_a_lost_answer_is_asked_for_again_and_nothing_is_doubled(
    server: TestedServer, topic: str, api: Api, fate: Fate
) -> None:
    """IDEM-7."""
    with Proxy(server.address) as proxy, Producer(proxy.address, name=topic, retry_backoff=0.01) as producer:
        for number in range(3):
            proxy.next(api, fate)
            with producer.transaction():
                producer.send(topic, b"%d" % number)
                producer.send(topic, b"%d" % number)
    assert committed(server, topic, 6) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_other_threads_may_send_into_the_open_transaction(server: TestedServer, topic: str) -> None:
    with Producer(server.address, name=topic) as producer:
        with producer.transaction():
            threads = [threading.Thread(target=producer.send, args=(topic, b"v")) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert committed(server, topic, 8) == [b"v"] * 8


def test_what_makes_no_sense_is_refused_with_the_reason(server: TestedServer, topic: str) -> None:
    with Producer(server.address) as plain, pytest.raises(ConfigError, match="name"):
        plain.transaction()
    with pytest.raises(ConfigError, match="idempotent"):
        Producer(server.address, name="n", idempotent=False)
    with Producer(server.address, name=topic) as producer:
        with pytest.raises(FencepostError, match="there is no open transaction"):
            producer.send_offsets("g", {})
        with producer.transaction(), pytest.raises(FencepostError, match="do not nest"):
            producer.transaction()


def test_closing_in_the_middle_aborts(server: TestedServer, topic: str) -> None:
    producer = Producer(server.address, name=topic)
    producer.transaction().__enter__()
    producer.send(topic, b"v").result(30)
    producer.close()
    with Producer(server.address) as other:
        other.send(topic, b"behind it")
    assert committed(server, topic, 1) == [b"behind it"]


def test_who_waits_for_the_name_is_told_when_another_thread_closes() -> None:
    """The server never answers. It used to take `delivery_timeout`."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        producer = Producer(f"127.0.0.1:{silent.getsockname()[1]}", name="n", delivery_timeout=3600, linger=0)
        entering = pool.submit(producer.transaction().__enter__)
        with suppress(TimeoutError):
            entering.result(0.3)  # it probably waits by now
        producer.close(0)
        with pytest.raises(Closed):
            entering.result(60)


@pytest.mark.parametrize("step", ["transaction_coordinator", "to"])
def test_a_call_between_two_requests_leaves_no_socket_on_close(
    fencepost_server: Server, name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found the coordinator, or chosen the channel there, and asks when all connections have been closed."""
    producer = Producer(fencepost_server.address, name=name)
    take = getattr(Routes, step)

    def take_then_close(routes: Routes, where: object) -> object:
        found = take(routes, where)
        threads.append(threading.current_thread())
        with suppress(Undelivered):  # unless the test has asked the ticket already
            producer.close(0)
        return found

    threads: list[threading.Thread] = []
    monkeypatch.setattr(Routes, step, take_then_close)
    ticket = producer.send(name, b"x")
    assert "the producer was closed before" in str(ticket.exception(60))
    (thread,) = threads
    thread.join(60)
    assert thread.name == "fencepost-blocking"
    assert not producer._routes._idle
    assert not producer._routes._busy


@pytest.mark.parametrize("key", [22, 24])
def test_a_record_that_expires_names_the_coordinators_last_refusal(
    name: str, key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator refuses for longer than the record may take: its epoch, or the partition of its transaction."""
    refusals: dict[int, dict[str, object]] = {
        22: {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "producer_id": -1, "producer_epoch": -1},
        24: {
            "results_by_topic_v3_and_below": [
                {
                    "name": name,
                    "results_by_partition": [
                        {"partition_index": 0, "partition_error_code": ErrorCode.CONCURRENT_TRANSACTIONS}
                    ],
                }
            ]
        },
    }
    with Server() as server, Admin(server.address) as admin:
        admin.create_topic(name, 1)
        with Producer(server.address, name=name, delivery_timeout=2, request_timeout=1) as producer:
            if key == 24:
                producer.send(name, b"plain", partition=0).result(30)  # it has its epoch

            async def refuse(*_: object) -> dict[str, object]:
                return refusals[key]

            monkeypatch.setitem(APIS, key, replace(APIS[key], handle=refuse))
            if key == 22:
                expired = producer.send(name, b"x", partition=0).exception(30)
            else:
                with pytest.raises(FencepostError), producer.transaction():
                    ticket = producer.send(name, b"x", partition=0)
                expired = ticket.exception(30)
    assert isinstance(expired, Expired)
    said = {
        22: f"COORDINATOR_LOAD_IN_PROGRESS: InitProducerId of {name!r}",
        24: f"CONCURRENT_TRANSACTIONS: adding {name}-0 to a transaction of {name!r}",
    }
    assert f"the server last answered {said[key]}" in str(expired)


@pytest.mark.long
@pytest.mark.kafka
def test_a_record_that_expires_names_why_kafka_has_no_coordinator(tmp_path: Path, name: str) -> None:
    """A single broker, and a topic of transactions that wants three: all else works."""
    broker = KafkaBroker(tmp_path, {"transaction.state.log.replication.factor": 3})
    with running(broker), Producer(broker.address, name=name, delivery_timeout=3, request_timeout=1) as producer:
        expired = producer.send(name, b"x").exception(60)
    assert isinstance(expired, Expired)
    assert expired.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "the server last answered COORDINATOR_NOT_AVAILABLE: " in str(expired)

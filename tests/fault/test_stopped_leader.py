"""A server is stopped (SIGSTOP), not killed: it keeps its connections and says nothing. Ours, and a node of three."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

from fencepost import Admin, Producer, Reader
from fencepost.client.produce.ticket import Ticket
from fencepost.errors import Expired, Undelivered
from fencepost.types import TopicPartition
from tests.conftest import without_tool
from tests.support.crash import ServerProcess
from tests.support.kafka import KafkaUnavailable
from tests.support.kafka_cluster import NODES, KafkaCluster

pytestmark = pytest.mark.fault

MEMORY = 4 << 20
LARGE = b"x" * 10_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    started = KafkaCluster(tmp_path_factory.mktemp("stopped"))
    try:
        started.start()
        yield started
    except KafkaUnavailable as unavailable:
        without_tool(str(unavailable))
    finally:
        started.stop()


def led_by(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Node → a partition that it leads, and nobody else has."""
    with Admin(cluster.servers) as admin:
        admin.create_topic(topic, partitions=len(NODES), replication=1)
    cluster.wait_until_led(topic)
    return {each.leader: each.partition for each in cluster.partitions(topic)}


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_flooded_partition_of_a_stopped_node_does_not_block_its_topic(cluster: KafkaCluster) -> None:
    """PROD-6, PROD-7: the others of the same topic are accepted and acknowledged while the node is stopped."""
    partitions = led_by(cluster, "isolated")
    stopped, healthy = partitions[NODES[0]], partitions[NODES[1]]
    with Producer(cluster.servers, buffer_memory=MEMORY) as producer:
        for partition in partitions.values():
            producer.send("isolated", b"first", partition=partition)
        producer.flush()

        def flood() -> None:
            for _ in range(2 * MEMORY // len(LARGE)):
                producer.send("isolated", LARGE, partition=stopped)

        flooding = threading.Thread(target=flood)
        # In a thread: a `send` that blocked would do so until the node goes on.
        with ThreadPoolExecutor() as pool, cluster.paused(NODES[0]):
            flooding.start()
            while not producer._sender.queues.in_a_hurry:  # the flood is blocked: its partition is full
                assert flooding.is_alive()
                time.sleep(0.01)  # another thread's state: nothing to await
            sending = pool.submit(producer.send, "isolated", LARGE, partition=healthy)
            sending.result(60).result(60)
            assert flooding.is_alive()  # still blocked: the healthy one did not wait for it
        flooding.join(120)
        assert not flooding.is_alive()


class Stoppable(NamedTuple):
    servers: str
    topic: str
    partition: int
    stopped: Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def stoppable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stoppable]:
    """A partition whose leader can be stopped."""
    topic = f"promised-{request.param}"
    if request.param == "kafka":
        cluster: KafkaCluster = request.getfixturevalue("cluster")
        partition = led_by(cluster, topic)[NODES[2]]
        yield Stoppable(cluster.servers, topic, partition, lambda: cluster.paused(NODES[2]))
        return
    with ServerProcess(tmp_path) as server:
        server.start("os")
        server.await_ready()
        with Admin(server.address) as admin:
            admin.create_topic(topic, partitions=1)
        yield Stoppable(server.address, topic, 0, server.paused)


@pytest.mark.timeout(300)
def test_tickets_are_settled_in_time_while_the_leader_is_stopped(stoppable: Stoppable) -> None:
    """PROD-8: `delivery_timeout` is a promise, however long an answer may take. What was in flight is unknown; and when
    the server goes on, every record is there once at most, and in order."""
    servers, topic, partition, stopped = stoppable
    sent: list[bytes] = []
    with Producer(servers, delivery_timeout=1.0, request_timeout=250.0, when_full="raise") as producer:

        def send() -> Ticket:
            sent.append(b"%06d" % len(sent))
            return producer.send(topic, sent[-1], partition=partition)

        send().result(60)
        with stopped():
            first = send()
            in_flight = first.exception(60)
            assert isinstance(in_flight, Expired)
            assert in_flight.persisted == "unknown"
            behind = [send() for _ in range(10)]
            for ticket in behind:
                assert isinstance(ticket.exception(60), Expired)
        while send().exception(60) is not None:  # the silent connection is not given up: its answers come now
            pass
        with contextlib.suppress(Undelivered):
            producer.flush()
    with Reader(servers, TopicPartition(topic, partition), stop="latest") as reader:
        values = [bytes(record.value or b"") for record in reader]
    assert values == sorted(set(values))
    assert values[0] == sent[0]
    assert values[-1] == sent[-1]

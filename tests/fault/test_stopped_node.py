"""One of three Kafka nodes is stopped (SIGSTOP): it keeps its connections and answers nothing, and the cluster has not
noticed yet. Whatever needs no answer of that node goes on (PROD-6, PROD-7).

The clients' request timeout is far longer than what is waited for, so each of these fails if somebody waits for the
stopped node alone. The seconds that each took are printed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import pytest

from fencepost import Admin, Producer, Reader
from fencepost.client.cluster.addresses import parse_servers
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key
from tests.support.kafka import running
from tests.support.kafka_cluster import NODES, KafkaCluster

T = TypeVar("T")

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.timeout(300), pytest.mark.long]

FIRST = NODES[0]
"""Of the servers that a client is given: whom it asks first."""
WAITED = 60.0
"""Seconds after which a test gives up; no broker answers later than this unless it hangs."""
REQUEST_TIMEOUT = 200.0
UNNOTICED = {
    "broker.session.timeout.ms": 600_000,  # the cluster does not get to replacing the node by itself
    "min.insync.replicas": 1,  # each topic here is on few nodes, so that it does without the stopped one
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 12,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with running(KafkaCluster(tmp_path_factory.mktemp("hung"), UNNOTICED)) as started:
        yield started


def settings(cluster: KafkaCluster) -> ClientSettings:
    """The stopped node first."""
    return ClientSettings(parse_servers(cluster.servers), request_timeout=REQUEST_TIMEOUT)


def timed(what: str, call: Callable[[], T]) -> T:
    """Its result, unless it takes as long as only a wait for the stopped node does."""
    began, outcome = time.monotonic(), Future[T]()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    result = outcome.result(WAITED)
    print(f"{what}: {time.monotonic() - began:.2f} s")
    return result


@contextlib.contextmanager
def producing(cluster: KafkaCluster) -> Iterator[Producer]:
    """Ends although records may be stuck."""
    how = settings(cluster)
    producer = Producer(how, request_timeout=REQUEST_TIMEOUT, delivery_timeout=2 * REQUEST_TIMEOUT)
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def asked_first(cluster: KafkaCluster, producer: Producer) -> int:
    """The node that an idle producer puts its next question to."""
    connection = producer._sender.brokers.any()
    assert connection is not None
    return next(node for node, broker in cluster.nodes.items() if broker.port == connection.address.port)


def give_every_node_pids(cluster: KafkaCluster) -> None:
    """A node that has none left asks the controller, and for half a minute the one that is stopped."""
    with Routes(settings(cluster)) as routes:
        for address in routes.settings.servers:
            fields = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
            routes.channel(address).request(Key.INIT_PRODUCER_ID, fields)


def test_a_producer_goes_on_with_new_topics_and_moved_leaders(cluster: KafkaCluster) -> None:
    give_every_node_pids(cluster)
    with Admin(cluster.servers) as admin:
        admin.create_topic("known", 3, replication=1)
    with producing(cluster) as producer, producing(cluster) as fresh:
        for partition in range(3):
            producer.send("known", b"first", partition=partition).result(WAITED)
        hung = asked_first(cluster, producer)
        here, there = (node for node in NODES if node != hung)
        cluster.create_on("moving", here, there)
        cluster.create_on("new", here)
        producer.send("moving", b"first").result(WAITED)
        with cluster.paused(hung):
            timed("first record to a new topic of a healthy node", producer.send("new", b"one").result)
            cluster.move_leader("moving", there)
            timed("record to a leader that moved between healthy nodes", producer.send("moving", b"two").result)
            timed("first record of a new producer (metadata, InitProducerId)", fresh.send("new", b"two").result)


def test_readers_administration_and_lookups_go_on(cluster: KafkaCluster) -> None:
    cluster.create_on("read", 2)
    with producing(cluster) as producer:
        producer.send("read", b"one").result(WAITED)
    group = coordinated_elsewhere(cluster)
    with Admin(settings(cluster)) as admin, Routes(settings(cluster)) as routes:
        assert admin.ping().address == cluster.nodes[FIRST].address  # connected to the node before it stops
        routes.view()

        def read() -> list[bytes | None]:
            with Reader(settings(cluster), TopicPartition("read", 0)) as reader:
                return [record.value for record in reader.poll() or ()]

        with cluster.paused(FIRST):
            topics = timed("Admin.topics", admin.topics)
            assert "read" in {topic.name for topic in topics}
            assert timed("Admin.describe_topic", lambda: admin.describe_topic("read")).partitions[0].leader == 2
            assert timed("Admin.topic_configs", lambda: admin.topic_configs("read"))
            assert timed("Admin.latest", lambda: admin.latest("read")) == {0: 1}
            timed("Admin.create_topic", lambda: admin.create_topic("made", 1, replication=1))
            assert timed("coordinator of a group", lambda: routes.coordinator(group)).id != FIRST
            timed("Admin.commit_group_offsets", lambda: admin.commit_group_offsets(group, "read", {0: 1}))
            assert [each.committed for each in timed("Admin.group_offsets", lambda: admin.group_offsets(group))] == [1]
            assert timed("Reader, from its start to the first record", read) == [b"one"]


def coordinated_elsewhere(cluster: KafkaCluster) -> str:
    """A group whose coordinator is a node that stays."""
    with Routes(ClientSettings.of(cluster.servers)) as routes:
        for number in range(1000):
            name = f"group-{number}"
            if routes.retried(partial(routes.coordinator, name)).id != FIRST:
                return name
    raise AssertionError("the stopped node coordinates every group")


def test_an_owner_goes_on_writing_to_the_partitions_that_other_nodes_lead(cluster: KafkaCluster) -> None:
    """OWN-9, PROD-6: each of its partitions is written in a lane of its own, whose coordinator is the leader. The one
    that is stuck goes on when its node does, and nobody was fenced meanwhile."""
    topics = {node: f"owned-{node}" for node in NODES}
    for node, topic in topics.items():
        cluster.create_on(topic, node)
    with producing(cluster) as producer:
        producer.own("owners", [f"{topic}-0" for topic in topics.values()], generation=1)
        for topic in topics.values():
            producer.send(topic, b"before", partition=0).result(WAITED)
        with cluster.paused(FIRST):
            stuck = producer.send(topics[FIRST], b"stuck", partition=0)
            for number in range(3):
                for node in NODES[1:]:
                    ticket = producer.send(topics[node], b"%d" % number, partition=0)
                    timed(f"a record of an owner, led by node {node}", partial(ticket.result, WAITED))
            assert not stuck.done()
        stuck.result(WAITED)
        producer.check_owned()
    for node, topic in topics.items():
        with Reader(cluster.servers, topic, stop="latest") as reader:
            values = [record.value for record in reader]
        assert values == ([b"before", b"stuck"] if node == FIRST else [b"before", b"0", b"1", b"2"])

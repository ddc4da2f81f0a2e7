"""A server is stopped (SIGSTOP), not killed: it keeps its connections and says nothing. Ours, and a node of three."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from fencepost import Admin, Producer, Reader
from fencepost.client.produce.ticket import Ticket
from fencepost.errors import Expired, Fenced, FencepostError, Undelivered
from fencepost.types import TopicPartition
from tests.support.cluster_load import PARTITIONS
from tests.support.crash import ServerProcess
from tests.support.kafka import running
from tests.support.kafka_cluster import NODES, KafkaCluster
from tests.support.named_writers import TIMEOUT, TransactionWriter, all_kinds

pytestmark = pytest.mark.fault

MEMORY = 4 << 20
LARGE = b"x" * 10_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with running(KafkaCluster(tmp_path_factory.mktemp("stopped"))) as started:
        yield started


def led_by(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Node → a partition that it leads, and nobody else has."""
    with Admin(cluster.servers) as admin:
        admin.create_topic(topic, partitions=len(NODES), replication=1)
    cluster.wait_until_led(topic)
    return {each.leader: each.partition for each in cluster.partitions(topic)}


@pytest.mark.long
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


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.long])])
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
    with Producer(servers, delivery_timeout=1.0, request_timeout=250.0, block_timeout=0) as producer:

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


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(400)
def test_a_claim_does_not_wait_for_a_node_that_hangs(cluster: KafkaCluster) -> None:
    """OWN-9: whatever the node coordinates or leads for the claim, another node does so after Kafka's failover. The
    request timeout is far longer than what is waited for, so that nobody may wait for the stopped node alone."""
    first = Producer(cluster.servers)
    first.own("hung", ["it"], generation=1, session=30)
    first.close()
    internal = ["__fencepost_own.hung", "__transaction_state", "__consumer_offsets"]
    for node in NODES:
        for topic in internal:
            cluster.wait_until_whole(topic)
        with ThreadPoolExecutor(1) as pool, Producer(cluster.servers, request_timeout=200.0) as producer:
            with cluster.paused(node):
                began = time.monotonic()
                claim = pool.submit(producer.own, "hung", ["it"], wait=200, session=30).result(60)
                print(f"a claim while node {node} hangs: {time.monotonic() - began:.1f} s")
            claim.check()


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_table_says_which_rows_are_in_the_log_when_one_leader_is_stopped(cluster: KafkaCluster) -> None:
    """PROD-8: what is missing can be sent again, and no row is there twice. Of the stopped node's rows, one batch may
    be in flight, and the others wait for its answer."""
    partitions = led_by(cluster, "table")
    stopped, healthy = partitions[NODES[2]], partitions[NODES[1]]
    table = pa.table({"value": [b"%d" % row for row in range(100)], "partition": [stopped, healthy] * 50})
    with Producer(cluster.servers, delivery_timeout=6.0, batch_size=200) as producer:
        producer.send("table", b"known", partition=healthy).result(60)
        with cluster.paused(NODES[2]):
            error = producer.send_arrow("table", table).exception(60)
        assert isinstance(error, Expired)
        assert error.persisted == "partly"
        assert error.rows is not None
        assert error.rows.persisted == tuple(range(row, row + 1) for row in range(1, 100, 2))
        in_flight = len(error.rows.unknown)
        assert (*error.rows.unknown, *error.rows.missing) == tuple(range(row, row + 1) for row in range(0, 100, 2))
        assert in_flight < 25  # none, if the connection to the stopped node was not ready yet
    with Producer(cluster.servers) as producer:
        missing = pa.concat_tables(table.slice(rows.start, len(rows)) for rows in error.rows.missing)
        producer.send_arrow("table", missing).result(120)
    with Reader(cluster.servers, "table", stop="latest") as reader:
        there = Counter(record.value for record in reader)
    unknown = {b"%d" % row for rows in error.rows.unknown for row in rows}
    assert there - Counter(unknown) == Counter([b"known", *table.column("value").to_pylist()]) - Counter(unknown)
    assert max(there.values()) == 1


# --- a node that hung answers by what it knew before: nobody loses a name by that ---

REQUEST_TIMEOUT = 5.0
"""Longer than the cluster needs to replace a stopped node (its session is 3 s), so that a retry finds the successor."""
STOPPED_ON = 3.0
"""Seconds for which the node stays stopped after the commit. So it is stopped for longer than REQUEST_TIMEOUT, and for
far less than the transaction timeout: nobody has a reason to take a name away."""


class Names:
    """What is written under names while one node of the cluster, which keeps a name and leads partitions, hangs."""

    def __init__(self, cluster: KafkaCluster, node: int, request_timeout: float = REQUEST_TIMEOUT) -> None:
        self._cluster, self._node = cluster, node
        self._prefix = f"woken-{node}-{time.time_ns()}"
        self.topics: list[str] = []
        self._name = next(
            name for name in (f"{self._prefix}-{number}" for number in range(1000)) if cluster.coordinator(name) == node
        )
        self.writers = all_kinds(cluster.servers, self._create, self._name, request_timeout)

    def __enter__(self) -> Names:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self.writers:
            with contextlib.suppress(FencepostError):
                writer.producer.close(timeout=0 if error[0] is not None else None)

    def _create(self, kind: str) -> str:
        topic = f"{self._prefix}-{kind}"
        with Admin(self._cluster.servers) as admin:
            admin.create_topic(topic, partitions=PARTITIONS, replication=len(NODES))
        self._cluster.wait_until_whole(topic)
        self.topics.append(topic)
        return topic

    def do_not_tell(self) -> None:
        """Keep from the send threads that a coordinator was silent, so that they write to the stopped node."""
        for writer in self.writers:
            writer.producer._routes.on_silent = lambda address, error: None

    def stop_before_commit(self, seconds: float = STOPPED_ON) -> None:
        """Stop the node just before a commit. Wake it while the following writes are on their way."""
        for writer in self.writers:
            writer.write()
        with ThreadPoolExecutor() as pool:
            with contextlib.ExitStack() as stopped:
                stops = iter(
                    [self._cluster.paused(self._node)]
                )  # once, although an aborted transaction is written again
                self.writers[0].write(lambda: [stopped.enter_context(each) for each in stops])
                writing = [pool.submit(writer.write) for writer in self.writers]
                wait(writing, seconds)
            for each in writing:
                each.result(3 * TIMEOUT)
        for _ in range(3):
            for writer in self.writers:
                writer.write()

    def restore(self) -> None:
        for topic in (*self.topics, "__transaction_state"):
            self._cluster.wait_until_whole(topic)
            self._cluster.elect_preferred(topic)

    def judge(self) -> None:
        for writer in self.writers:
            writer.judge()

    def take_over(self) -> None:
        """Start a second producer of each name, which must end the first one for good and not be disturbed by it."""
        for writer in self.writers[:2]:
            with Producer(self._cluster.servers, name=writer.producer._options.name) as second:
                successor = type(writer)(second, self._cluster.servers, writer.topic)
                successor.written = writer.written
                successor.write()
                for _ in range(2):
                    with pytest.raises(Fenced):
                        writer.write()
                successor.write()
                successor.judge()


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_node_that_wakes_up_fences_only_those_whose_name_was_taken(cluster: KafkaCluster) -> None:
    """IDEM-5, OWN-9: on Produce a stale epoch is no proof, because the woken leader answers by what it knew before. The
    coordinator that replaced it decides. Here the send threads do not learn in time that the node hangs."""
    with Names(cluster, NODES[0]) as names:
        names.do_not_tell()
        names.stop_before_commit()
        print(f"aborted: {names.writers[0].failures}")
        names.restore()
        names.judge()
        names.take_over()


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(0)
def test_each_node_in_turn_wakes_up_and_nobody_is_fenced(cluster: KafkaCluster) -> None:
    """The same in full: with the default request timeout of 30 s, each node in turn is stopped for 36 s. Every second
    round the send threads are not told. FENCEPOST_WOKEN_ROUNDS sets how many rounds there are."""
    for number in range(int(os.environ.get("FENCEPOST_WOKEN_ROUNDS", "2"))):
        for node in NODES:
            with Names(cluster, node, request_timeout=30.0) as names:
                if number % 2:
                    names.do_not_tell()
                if isinstance(transactional := names.writers[0], TransactionWriter):
                    transactional.group = f"readers-{number}-{node}"  # its coordinator is any of the nodes
                began = time.monotonic()
                names.stop_before_commit(seconds=6.0)
                took = time.monotonic() - began
                names.restore()
                names.judge()
                names.take_over()
                aborted = [error.code.name for error in names.writers[0].failures]
                print(f"round {number}, node {node}: {took:.0f} s, aborted {aborted}, nobody fenced", flush=True)

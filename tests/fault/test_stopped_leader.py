"""A node of three is stopped (SIGSTOP), not killed: it keeps its connections and says nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost import Admin, Producer
from tests.conftest import without_kafka
from tests.support.kafka import KafkaUnavailable
from tests.support.kafka_cluster import NODES, KafkaCluster

pytestmark = [pytest.mark.fault, pytest.mark.kafka]

MEMORY = 4 << 20
LARGE = b"x" * 10_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    started = KafkaCluster(tmp_path_factory.mktemp("stopped"))
    try:
        started.start()
        yield started
    except KafkaUnavailable as unavailable:
        without_kafka(str(unavailable))
    finally:
        started.stop()


def led_by(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Node → a partition that it leads, and nobody else has."""
    with Admin(cluster.servers) as admin:
        admin.create_topic(topic, partitions=len(NODES), replication=1)
    cluster.wait_until_led(topic)
    return {each.leader: each.partition for each in cluster.partitions(topic)}


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

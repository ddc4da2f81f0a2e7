"""Three nodes of a real Apache Kafka on this machine, each broker and controller, to be killed and started again.

Replication 3 and `min.insync.replicas` 2: one node at a time may be gone and nothing that was acknowledged is. Sessions
are short, so that a leader that was killed has a successor in seconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.alter_partition_reassignments.v0 import request as reassignment
from kio.schema.elect_leaders.v2 import request as election
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import i8, i32

from fencepost import Admin
from fencepost.client.admin.results import PartitionDescription
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import FencepostError
from tests.support.kafka import HOST, KafkaBroker, new_cluster_id
from tests.support.process import stop

NODES: Final = (1, 2, 3)
SETTLED_SECONDS: Final = 120
JVM: Final = ["-Xms48m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]

SETTINGS: Final[Mapping[str, object]] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "auto.leader.rebalance.enable": "false",  # leaders move when a test says so
    "unclean.leader.election.enable": "false",
}


class KafkaCluster:
    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        cluster_id = new_cluster_id()
        self.nodes = {node: KafkaBroker(folder / str(node), jvm=JVM, cluster_id=cluster_id) for node in NODES}
        voters = ",".join(f"{node}@{HOST}:{broker.controller_port}" for node, broker in self.nodes.items())
        for node, broker in self.nodes.items():
            broker.settings.update({**SETTINGS, "node.id": node, "controller.quorum.voters": voters})
            broker.settings.update(settings or {})
        self.servers = ",".join(broker.address for broker in self.nodes.values())

    def start(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(KafkaBroker.format, self.nodes.values()))
        for broker in self.nodes.values():
            broker.begin()
        for broker in self.nodes.values():
            broker.wait_until_ready()

    def stop(self) -> None:
        for broker in self.nodes.values():
            broker.stop()

    # --- what becomes of a node ---

    def kill(self, node: int) -> None:
        """SIGKILL: its session ends by time, and it comes back after an unclean shutdown."""
        self.nodes[node].stop()

    def shut_down(self, node: int) -> None:
        """SIGTERM: it hands its leaderships over before it goes."""
        self.nodes[node].shut_down()

    def bring_back(self, node: int) -> None:
        self.nodes[node].launch()

    @contextlib.contextmanager
    def paused(self, node: int) -> Iterator[None]:
        """SIGSTOP: it holds its connections, says nothing, and wakes up not knowing that time has passed."""
        pid = self.nodes[node].pid
        stop(pid)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def elect_preferred(self, topic: str) -> None:
        """Every partition is led by the first of its replicas again."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        partitions = [TopicPartition(topic, each.partition) for each in self.partitions(topic)]
        admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)

    def create_on(self, topic: str, *replicas: int) -> None:
        """A topic of one partition on these nodes; the first of them leads."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[list(replicas)])])[topic].result(60)
        self._wait(topic, lambda each: each.leader == replicas[0] and len(each.in_sync) == len(replicas))

    def move_leader(self, topic: str, to: int) -> None:
        """The partition's replicas stay the same; another one of them leads. Asked of that one, whoever else hangs."""
        (partition,) = self.partitions(topic)
        order = [to, *(node for node in partition.replicas if node != to)]
        replicas = reassignment.ReassignablePartition(partition_index=i32(0), replicas=tuple(map(BrokerId, order)))
        moved = reassignment.ReassignableTopic(name=TopicName(topic), partitions=(replicas,))
        self._ask(to, reassignment.AlterPartitionReassignmentsRequest(topics=(moved,)))
        self._wait(topic, lambda each: each.replicas[0] == to)
        elected = election.TopicPartitions(topic=TopicName(topic), partitions=(i32(0),))
        self._ask(to, election.ElectLeadersRequest(election_type=i8(0), topic_partitions=(elected,)))
        self._wait(topic, lambda each: each.leader == to)

    def _ask(self, node: int, request: Any) -> None:
        """What no client here can ask; its answer is not looked at."""
        head = RequestHeader(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(1),
            client_id="tests",
        )
        written = io.BytesIO()
        entity_writer(RequestHeader)(written, head)
        entity_writer(type(request))(written, request)
        frame = written.getvalue()
        with socket.create_connection((HOST, self.nodes[node].port)) as connection:
            connection.sendall(len(frame).to_bytes(4, "big") + frame)
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            assert len(connection.recv(size, socket.MSG_WAITALL)) == size

    # --- who does what ---

    def partitions(self, topic: str) -> tuple[PartitionDescription, ...]:
        """By whichever node answers."""
        with Admin(self.servers) as admin:
            return admin.describe_topic(topic).partitions

    def leader(self, topic: str, partition: int) -> int:
        return self.partitions(topic)[partition].leader

    def coordinator(self, name: str) -> int:
        """The node that keeps a transactional id."""
        with Routes(ClientSettings.of(self.servers)) as routes:
            return routes.retried(lambda: routes.transaction_coordinator(name)).id

    def wait_until_moved(self, topic: str, away_from: int) -> None:
        """Every partition has a leader, and it is not that node."""
        self._wait(topic, lambda each: each.leader not in (-1, away_from))

    def wait_until_led(self, topic: str) -> None:
        """Every partition has a leader, however few replicas there are."""
        self._wait(topic, lambda each: each.leader != -1)

    def wait_until_whole(self, topic: str) -> None:
        """Every replica is in sync: the next node may go."""
        self._wait(topic, lambda each: each.leader != -1 and len(each.in_sync) == len(NODES))

    def _wait(self, topic: str, is_so: Callable[[PartitionDescription], bool]) -> None:
        deadline = time.monotonic() + SETTLED_SECONDS
        seen: object = None
        while time.monotonic() < deadline:
            with contextlib.suppress(FencepostError):
                partitions = self.partitions(topic)
                seen = partitions
                if all(is_so(each) for each in partitions):
                    return
            time.sleep(0.1)  # another process's state: nothing to await
        raise AssertionError(f"{topic} did not settle within {SETTLED_SECONDS} s: {seen}")

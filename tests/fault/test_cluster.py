"""A cluster of three whose leaders die under load: nothing acknowledged is lost or doubled (IDEM-7, PROD-4, PROD-8).

FENCEPOST_CLUSTER_FAULTS sets how many faults the long one injects, FENCEPOST_CLUSTER_SEED repeats its dice.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost import Admin
from fencepost.client.admin.results import NewTopic
from tests.support.cluster_load import PARTITIONS, Follower, PlainLoad, TransactionLoad, stored
from tests.support.kafka import running
from tests.support.kafka_cluster import NODES, KafkaCluster

pytestmark = [pytest.mark.fault, pytest.mark.kafka]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    with running(KafkaCluster(tmp_path)) as started:
        yield started


class Run:
    """Loads on three topics, faults one after the other, and the judgement."""

    PATIENT = "patient"
    IMPATIENT = "impatient"
    TRANSACTIONAL = "transactional"

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        topics = [self.PATIENT, self.IMPATIENT, self.TRANSACTIONAL]
        with Admin(cluster.servers) as admin:
            admin.create_topics([NewTopic(name, partitions=PARTITIONS, replication=3) for name in topics])
        for name in topics:
            cluster.wait_until_whole(name)
        self.patient = PlainLoad(cluster.servers, self.PATIENT)
        # Gives up long before a new leader is found: its tickets are those that must tell yes from no.
        self.impatient = PlainLoad(cluster.servers, self.IMPATIENT, delivery_timeout=1.0, request_timeout=1.0)
        self.transactional = TransactionLoad(cluster.servers, self.TRANSACTIONAL)
        self._followers = [Follower(cluster.servers, name) for name in (self.PATIENT, self.TRANSACTIONAL)]
        self.kills = 0

    def __enter__(self) -> Run:
        for each in (self.patient, self.impatient, self.transactional, *self._followers):
            each.start()
        self.wait_for_progress()
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self.patient, self.impatient, self.transactional):
            each.finish()
        if error[0] is not None:
            for follower in self._followers:
                follower.finish()

    def wait_for_progress(self) -> None:
        """Until each of them was told of something new."""
        loads: list[Callable[[], int]] = [
            lambda: self.patient.acknowledged,
            lambda: self.impatient.acknowledged,
            lambda: self.transactional.committed,
        ]
        for told in loads:
            before, waited = told(), 0
            while told() < before + 3:
                assert waited < 1200, "no progress for 120 s"
                self.patient.pause(0.1)
                waited += 1

    # --- faults ---

    def leader_is_killed(self, partition: int) -> None:
        leader = self._cluster.leader(self.PATIENT, partition)
        self._replace(leader, self._cluster.kill)

    def leader_is_shut_down(self, partition: int) -> None:
        leader = self._cluster.leader(self.TRANSACTIONAL, partition)
        self._replace(leader, self._cluster.shut_down)

    def leader_is_gone_for_good(self, partition: int) -> None:
        leader = self._cluster.leader(self.TRANSACTIONAL, partition)
        self._cluster.shut_down(leader)
        self._away_from(leader)
        self.wait_for_progress()

    def coordinator_is_killed(self, partition: int) -> None:
        self._replace(self._cluster.coordinator(self.transactional.name), self._cluster.kill)

    def leader_is_paused(self, partition: int) -> None:
        leader = self._cluster.leader(self.PATIENT, partition)
        with self._cluster.paused(leader):
            self._away_from(leader)
            self.wait_for_progress()
        self._whole()

    def followers_are_paused(self, partition: int) -> None:
        """The leader appends, nobody replicates: what is given up meanwhile may still come to stay."""
        leader = self._cluster.leader(self.IMPATIENT, partition)
        with contextlib.ExitStack() as stack:
            for follower in NODES:
                if follower != leader:
                    stack.enter_context(self._cluster.paused(follower))
            self.impatient.wait_until_it_gives_up()
        self._whole()
        self.wait_for_progress()

    def leaders_move_home(self, partition: int) -> None:
        for topic in (self.PATIENT, self.IMPATIENT, self.TRANSACTIONAL):
            self._cluster.elect_preferred(topic)
        self.wait_for_progress()

    def _replace(self, node: int, end: Callable[[int], None]) -> None:
        self.kills += end == self._cluster.kill
        end(node)
        self._away_from(node)
        self.wait_for_progress()
        self._cluster.bring_back(node)
        self._whole()
        self.wait_for_progress()

    def _away_from(self, node: int) -> None:
        for topic in (self.PATIENT, self.IMPATIENT, self.TRANSACTIONAL):
            self._cluster.wait_until_moved(topic, node)

    def _whole(self) -> None:
        for topic in (self.PATIENT, self.IMPATIENT, self.TRANSACTIONAL, "__transaction_state"):
            self._cluster.wait_until_whole(topic)

    # --- afterwards ---

    def judge(self) -> None:
        logs = {}
        judgements = []
        for load in (self.patient, self.impatient, self.transactional):
            log = logs[load.topic] = stored(self._cluster.servers, load.topic)
            judgement = load.judge(log)
            print(judgement)
            judgements.append(judgement)
        print(f"{self.kills} nodes killed")
        for judgement in judgements:
            assert not judgement.wrong, judgement.examples
        assert judgements[0].told.keys() == {"yes"}  # two minutes are enough for any of this
        assert judgements[2].told.keys() == {"committed", "aborted"}
        for follower in self._followers:
            follower.finish_at(logs[follower.topic])
            assert follower.seen == logs[follower.topic], f"the reader of {follower.topic} saw something else"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost_or_doubled_while_leaders_die_and_move(cluster: KafkaCluster) -> None:
    """The coordinator killed, which leads a partition of every topic; all leaders moved back; the followers paused; and
    another leader shut down, who does not come back."""
    with Run(cluster) as run:
        run.coordinator_is_killed(0)
        run.leaders_move_home(0)
        run.followers_are_paused(2)
        run.leader_is_gone_for_good(1)
    run.judge()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_or_doubled_in_many_faults(cluster: KafkaCluster) -> None:
    given = os.environ.get("FENCEPOST_CLUSTER_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with Run(cluster) as run:
        faults = [run.leader_is_killed] * 3 + [run.coordinator_is_killed, run.leader_is_shut_down]
        faults += [run.leader_is_paused, run.followers_are_paused, run.leaders_move_home]
        for number in range(int(os.environ.get("FENCEPOST_CLUSTER_FAULTS", "60"))):
            fault = dice.choice(faults)
            print(f"{number}: {fault.__name__}")
            fault(dice.randrange(PARTITIONS))
    run.judge()

"""The client's view of the cluster: brokers, topics, partitions, leaders. No I/O: answers in, questions out (PROD-7).

`Metadata` decides when to ask and for which topics; the caller asks and hands the answer back. Meanwhile, and after a
failure, the previous view stays in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fencepost.client.cluster.addresses import Address
from fencepost.errors import ErrorCode, Malformed
from fencepost.kernel import Buffer
from fencepost.wire import messages
from fencepost.wire.apis import Key

NO_LEADER: Final = -1


def question(topics: Iterable[str] | None, *, create: bool = False) -> dict[str, Any]:
    """Return the fields of a Metadata request; None: for all topics. `create`: the server may create missing ones."""
    return {
        "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def decode_answer(key: int, version: int, body: Buffer) -> Any:
    """Return the decoded answer. Raise Malformed if it cannot be read or cannot be true."""
    answer = messages.decode_response(key, version, body)
    if key == Key.METADATA:
        for topic in answer.topics:
            _check_indexes(topic)
    return answer


def _check_indexes(topic: Any) -> None:
    """Raise Malformed unless the partitions are 0, 1, 2 …: callers make lists of that length."""
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    if indexes != list(range(len(indexes))):
        raise Malformed(
            f"Metadata numbers the {len(indexes)} partitions of topic {topic.name!r} {indexes[0]} to {indexes[-1]}"
        )


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """One node of the cluster."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True)
class PartitionMetadata:
    leader: int
    """Node id, or NO_LEADER."""
    leader_epoch: int


@dataclass(slots=True)
class TopicMetadata:
    name: str
    topic_id: UUID | None
    partitions: list[PartitionMetadata]
    error: ErrorCode
    """NONE, or why the topic is unknown."""


class Metadata:
    def __init__(self, *, max_age: float = 300.0, backoff: float = 0.1, everything: bool = False) -> None:
        self.cluster_id: str | None = None
        self.brokers: dict[int, Address] = {}
        self.controller = -1
        self.topics: dict[str, TopicMetadata] = {}
        self.answers = 0
        """How often something was learned about a topic."""
        self._max_age = max_age
        self._backoff = backoff
        self._everything = everything
        self._wanted: dict[str, float] = {}  # topic → since when it is requested without success
        self._unknown: set[str] = set()
        """Those of them of which no partitions are known."""
        self._stale = False
        self._never_asked: set[str] = set()
        self._asking = False
        self._updated = float("-inf")
        self._not_before = float("-inf")

    # --- questions ---

    def want(self, topic: str, now: float) -> None:
        """Request this topic from now on."""
        if topic not in self._wanted:
            self._wanted[topic] = now
            self._never_asked.add(topic)
            if not self.partition_count(topic):
                self._unknown.add(topic)

    def forget(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._never_asked.discard(topic)
        self._unknown.discard(topic)
        self.topics.pop(topic, None)

    def distrust(self) -> None:
        """Ask again soon: the view is stale, as a lost connection or a wrong leader shows."""
        self._stale = True

    def due(self, now: float) -> bool:
        """Return whether to ask now."""
        if self._asking:
            return False
        if self._never_asked:
            return True  # a new topic does not wait for the backoff of others
        return self.ask_at() <= now

    def ask_at(self) -> float:
        """Return when to ask next."""
        if self._asking:
            return float("inf")
        if self._never_asked:
            return float("-inf")  # a new topic does not wait for the backoff of others
        if self._stale or self._unknown:
            return self._not_before
        return max(self._not_before, self._updated + self._max_age)

    def wanted(self) -> list[str] | None:
        """Return the topics to ask for; None for all of them."""
        return None if self._everything else list(self._wanted)

    def asked(self) -> None:
        self._asking = True
        self._never_asked.clear()

    # --- answers ---

    def failed(self, now: float) -> None:
        self._asking = False
        self._stale = True
        self._not_before = now + self._backoff

    def answered(self, answer: Any, now: float) -> None:
        """Take over an answer, a MetadataResponse of version 1 or newer that `decode_answer` has checked."""
        self._asking = False
        self._stale = False
        self._updated = now
        self._not_before = now + self._backoff
        self._meet(answer)
        for topic in answer.topics:
            self._learn(topic, now)

    def overheard(self, answer: Any, now: float) -> None:
        """Take over the known topics of an answer to another question. Unknown topics are not requested."""
        self._meet(answer)
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE:
                self._learn(topic, now)

    def _meet(self, answer: Any) -> None:
        self.cluster_id = getattr(answer, "cluster_id", None)
        self.controller = answer.controller_id
        self.brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}

    def _learn(self, answer: Any, now: float) -> None:
        self.answers += 1
        error = ErrorCode.of(answer.error_code)
        if self._everything:
            self._wanted.setdefault(answer.name, now)
        known = self.topics.get(answer.name)
        if error is not ErrorCode.NONE and known is not None and known.partitions:
            # The topic existed a moment ago: an election is going on, or this broker's metadata is stale.
            known.error = error
            self._stale = True
            return
        partitions: list[PartitionMetadata] = []
        for partition in sorted(answer.partitions, key=_index):
            epoch = getattr(partition, "leader_epoch", -1)
            leader, before = partition.leader_id, self._partition(known, partition.partition_index)
            same = known is not None and known.topic_id == getattr(answer, "topic_id", None)  # not recreated since
            if same and before is not None and before.leader != NO_LEADER and -1 < epoch < before.leader_epoch:
                leader, epoch = before.leader, before.leader_epoch  # the answer is older than the view (KIP-320)
            if leader == NO_LEADER or leader not in self.brokers:
                leader = NO_LEADER
                self._stale = True
            partitions.append(PartitionMetadata(leader, epoch))
        self.topics[answer.name] = TopicMetadata(answer.name, getattr(answer, "topic_id", None), partitions, error)
        if partitions:
            self._wanted[answer.name] = now
            self._unknown.discard(answer.name)
        elif answer.name in self._wanted:
            self._unknown.add(answer.name)

    @staticmethod
    def _partition(topic: TopicMetadata | None, index: int) -> PartitionMetadata | None:
        return topic.partitions[index] if topic is not None and index < len(topic.partitions) else None

    # --- what is known ---

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions, or 0 if the topic is unknown."""
        known = self.topics.get(topic)
        return len(known.partitions) if known is not None else 0

    def leader(self, topic: str, partition: int) -> int:
        known = self.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return NO_LEADER
        return known.partitions[partition].leader

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the leader epoch. Requests carry it, so that a broker that is not the leader rejects them."""
        known = self._partition(self.topics.get(topic), partition)
        return known.leader_epoch if known is not None else -1

    def led(self, topic: str) -> Iterable[int]:
        """Return the partitions that have a leader."""
        known = self.topics.get(topic)
        return () if known is None else [i for i, part in enumerate(known.partitions) if part.leader != NO_LEADER]

    def unknown_since(self, topic: str) -> float | None:
        """Return since when the topic is requested without success; None if it is known."""
        return None if self.partition_count(topic) else self._wanted.get(topic)


def _index(partition: Any) -> int:
    return int(partition.partition_index)

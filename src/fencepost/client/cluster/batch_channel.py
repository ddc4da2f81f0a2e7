"""Record batches to and from one broker, blocking and pipelined, for a task that moves a range of offsets.

A Spark task works in order and has nothing to do while it waits, so it needs no send thread and no queues. It sends
several Produce requests ahead and takes the answers as they come, or asks for the next Fetch while it decodes the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection, raise_for
from fencepost.client.cluster.handshake import choose_version
from fencepost.client.cluster.settings import ClientSettings
from fencepost.kernel import Buffer
from fencepost.types import TopicPartition
from fencepost.wire import hot
from fencepost.wire.apis import FETCH_BY_NAME, Key

NEWEST_PRODUCE: Final = 10
"""Later versions answer a write outside its transaction with TRANSACTION_ABORTABLE, or add partitions implicitly."""


class BatchChannel(BlockingConnection):
    @classmethod
    def open(cls, address: Address, settings: ClientSettings) -> Self:
        """Connect, negotiate versions and authenticate."""
        channel = cls(address, settings)
        try:
            channel.introduce()
        except BaseException:
            channel.close()
            raise
        return channel

    def send_batch(self, topic: str, partition: int, batch: Buffer, name: str | None) -> None:
        """Send one batch; `receive_produced` returns the answer. `name` is the transactional id, if any."""
        self.send_batches({TopicPartition(topic, partition): batch}, name)

    def send_batches(self, batches: Mapping[TopicPartition, Buffer], name: str | None) -> None:
        """Send a batch for each of these partitions in one request; `receive_all_produced` returns the answers."""
        topics: dict[str, list[hot.ProducePartition]] = {}
        for (topic, partition), batch in batches.items():
            topics.setdefault(topic, []).append(hot.ProducePartition(partition, memoryview(batch)))
        wanted = [hot.ProduceTopic(topic, None, partitions) for topic, partitions in topics.items()]
        version = choose_version(self.address, self.versions, Key.PRODUCE, NEWEST_PRODUCE)
        request = hot.ProduceRequest(name, -1, 30_000, wanted)
        self.send(Key.PRODUCE, version, hot.encode_produce_request(version, request))

    def receive_produced(self) -> hot.ProducedPartition:
        """Return the answer to the oldest batch without one."""
        ((_, answer),) = self.receive_all_produced()
        return answer

    def receive_all_produced(self) -> list[tuple[str | None, hot.ProducedPartition]]:
        """Return the answers to the oldest request without them, each with its topic."""
        version, body = self.receive()
        topics = hot.decode_produce_response(version, body).topics
        return [(topic.name, partition) for topic in topics for partition in topic.partitions]

    def send_fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, max_wait_ms: int, committed: bool
    ) -> None:
        wanted = [hot.FetchTopic(topic, None, [hot.FetchPartition(partition, offset, max_bytes)])]
        version = choose_version(self.address, self.versions, Key.FETCH, FETCH_BY_NAME)
        request = hot.FetchRequest(max_wait_ms, 1, max_bytes, int(committed), wanted)
        self.send(Key.FETCH, version, [hot.encode_fetch_request(version, request)])

    def receive_fetched(self) -> hot.FetchedPartition:
        version, body = self.receive()
        answer = hot.decode_fetch_response(version, body)
        raise_for(answer.error_code, f"fetching from {self.address}")
        return answer.topics[0].partitions[0]

"""Record batches to and from one broker, blocking and pipelined, for a task that moves a range of offsets.

A Spark task works in order and has nothing to do while it waits, so it needs no send thread and no queues. It sends
several Produce requests ahead and takes the answers as they come, or asks for the next Fetch while it decodes the last.
"""

from __future__ import annotations

from typing import Final, Self

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection, raise_for
from fencepost.client.cluster.handshake import choose_version
from fencepost.client.cluster.settings import ClientSettings
from fencepost.kernel import Buffer
from fencepost.wire import hot
from fencepost.wire.apis import FETCH_BY_NAME, Key

NEWEST_PRODUCE: Final = 10
"""Later versions answer a write outside its transaction with TRANSACTION_ABORTABLE, or add partitions implicitly."""


class BatchChannel(BlockingConnection):
    @classmethod
    def open(cls, address: Address, settings: ClientSettings) -> Self:
        """Connect, negotiate versions and authenticate."""
        channel = cls(
            address,
            client_id=settings.client_id,
            request_timeout=settings.request_timeout,
            connect_timeout=settings.connect_timeout,
            security=settings.security,
        )
        try:
            channel.introduce()
        except BaseException:
            channel.close()
            raise
        return channel

    def send_batch(self, topic: str, partition: int, batch: Buffer, name: str | None) -> None:
        """Send one batch; `receive_produced` returns the answer. `name` is the transactional id, if any."""
        wanted = [hot.ProduceTopic(topic, None, [hot.ProducePartition(partition, memoryview(batch))])]
        version = choose_version(self.address, self.versions, Key.PRODUCE, NEWEST_PRODUCE)
        request = hot.ProduceRequest(name, -1, 30_000, wanted)
        self.send(Key.PRODUCE, version, hot.encode_produce_request(version, request))

    def receive_produced(self) -> hot.ProducedPartition:
        """Return the answer to the oldest batch without one."""
        version, body = self.receive()
        return hot.decode_produce_response(version, body).topics[0].partitions[0]

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

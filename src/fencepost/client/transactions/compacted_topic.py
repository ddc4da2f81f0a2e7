"""A compacted topic of one partition, written only in transactions of one transactional id.

A sink keeps its progress in one (`client/micro_batch/topics.py`), and a group of owners on Apache Kafka its records
(`own/kafka_topic.py`). Nobody else writes there, so no other writer's open transaction can hide what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fencepost.client.admin.lasting import create_lasting_topic
from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.client.read.ranges import Range, fetch_records
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.errors import ErrorCode, ServerError
from fencepost.kernel import Record
from fencepost.types import Offset, TopicPartition


class CompactedTopic:
    def __init__(
        self, routes: Routes, topic: str, *, configs: Mapping[str, str] | None = None, patience: float = 60.0
    ) -> None:
        self.where = TopicPartition(topic, 0)
        self._routes = routes
        self._admin = TopicAdmin(routes)
        self._configs = {"cleanup.policy": "compact", **(configs or {})}
        self._patience = patience

    def ensure(self) -> None:
        """Create the topic unless it exists."""
        if self.exists():
            return
        create_lasting_topic(self._admin, self.where.topic, 1, configs=self._configs)
        # Another process may be creating it right now, and a broker of Apache Kafka hears of it a little later.
        pauses = Backoff(0.01, 1.0, self._patience)
        while not self.exists() and pauses.wait():
            pass

    def exists(self) -> bool:
        try:
            self._admin.describe_topic(self.where.topic)
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return False
        return True

    def first(self) -> Offset:
        return self._admin.earliest(self.where.topic)[self.where.partition]

    def end(self, *, committed: bool) -> Offset:
        """Return the last stable offset if `committed`, otherwise the high watermark."""
        return self._admin.latest(self.where.topic, read_committed=committed)[self.where.partition]

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Yield the committed records of a range. Wait while a transaction in it is open."""
        return fetch_records(self._routes, Range(*self.where, start, stop), patience=self._patience)

    def write(self, transaction: SharedTransaction, batches: Iterable[bytearray]) -> None:
        """Write the first batches of a transaction, each exactly once."""
        with LeaderChannels(self._routes) as channels:
            writer = PartitionWriter(channels, transaction, self.where, fresh=True, patience=self._patience)
            for batch in batches:
                writer.write(batch)
            writer.finish()

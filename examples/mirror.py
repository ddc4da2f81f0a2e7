"""An exactly-once mirror of a topic on another server, without Spark: records and position in one transaction.

    python examples/mirror.py 127.0.0.1:9092 127.0.0.1:9192 orders [--follow]

The position is stored in the *target*, as a group's offsets, in the transaction that writes the records: both are
committed or neither is. A mirror that was killed resumes at the target's position. A second mirror of the same topic
fences the first, because both have the same name. For large topics use `fencepost copy`, which copies whole batches on
Spark.
"""

from __future__ import annotations

import sys

import fencepost
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Offset, TopicPartition

AT_ONCE = 1000
"""The most records of one transaction."""


def position(target: str, group: str, source: str, topic: str) -> dict[int, int]:
    """Return partition → next offset: the target's stored position, or the start of the source."""
    with fencepost.Admin(source) as admin:
        found = {partition: int(offset) for partition, offset in admin.earliest(topic).items()}
    with fencepost.Admin(target) as admin:
        try:
            stored = admin.group_offsets(group)
        except ServerError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            stored = ()
    return found | {row.partition: int(row.committed) for row in stored if row.committed is not None}


def make_like(source: str, target: str, topic: str) -> None:
    """Create the target's topic with the source's number of partitions."""
    with fencepost.Admin(source) as here, fencepost.Admin(target) as there:
        if topic not in [known.name for known in there.topics()]:
            there.create_topic(topic, len(here.describe_topic(topic).partitions))


def main(source: str, target: str, topic: str, follow: bool = False) -> int:
    """Mirror the topic and return the number of records."""
    name = f"mirror-{topic}"
    make_like(source, target, topic)
    mirrored = 0
    with fencepost.Producer(target, name=name, compression="lz4") as producer:
        with producer.transaction():
            pass  # fences the previous mirror; only then is the stored position final
        start = position(target, name, source, topic)
        with fencepost.Reader(source, topic, start=start, stop=None if follow else "latest") as reader:
            while (records := reader.poll()) is not None:
                for first in range(0, len(records), AT_ONCE):
                    some = records[first : first + AT_ONCE]
                    with producer.transaction():
                        for record in some:
                            producer.send(
                                topic,
                                record.value,
                                key=record.key,
                                headers=record.headers,
                                partition=record.partition,
                                timestamp=record.timestamp,
                            )
                        ends = {TopicPartition(topic, r.partition): Offset(r.offset + 1) for r in some}
                        producer.send_offsets(name, ends)
                    mirrored += len(some)
                    print(f"{mirrored} mirrored", flush=True)
    return mirrored


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3], follow="--follow" in sys.argv)
    except fencepost.FencepostError as error:
        sys.exit(f"mirror: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

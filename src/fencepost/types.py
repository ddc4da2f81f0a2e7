"""The numbers of the protocol, each with a type of its own, so that an offset is never taken for a sequence."""

from typing import NamedTuple, NewType, TypeAlias

Pid = NewType("Pid", int)
"""Producer id, 64 bit, given by the server; −1 where a batch has none."""

Epoch = NewType("Epoch", int)
"""Producer epoch, 16 bit; a higher one fences a lower one."""

Sequence = NewType("Sequence", int)
"""Number of a record per (pid, partition), from 0; after 2**31 − 1 comes 0."""

Offset = NewType("Offset", int)
"""Place in a partition's log, 64 bit, given by the server."""

Generation = NewType("Generation", int)
"""`own`'s counter for a resource."""

Milliseconds: TypeAlias = int
"""A time since 1970, or a span, as Kafka's wire carries both."""

NO_PID = Pid(-1)
NO_EPOCH = Epoch(-1)
NO_SEQUENCE = Sequence(-1)
NO_TIMESTAMP: Milliseconds = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partition_named(name: str) -> TopicPartition | None:
    """The partition that `TOPIC-PARTITION` names; None for a name that cannot be one's."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if topic and number.isascii() and number.isdigit() else None

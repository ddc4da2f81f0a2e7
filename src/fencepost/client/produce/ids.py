"""What a producer saves beside its input position, to go on later without a duplicate (IDEM-4).

    with Producer(servers, name="enrich") as producer:         # the first time
    with Producer(servers, ids=saved) as producer:             # ever after
        …send what was made of the input…
        producer.flush()
        save(position, producer.ids)                           # in one place, at once

A process that dies between two saves is started again with the older ids and sends again what it sent after them. For
each partition the producer reads the log behind the saved offset, finds what is there of its pid, and answers for those
records without sending them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fencepost.errors import ConfigError
from fencepost.types import Epoch, Offset, Pid, Sequence, TopicPartition


@dataclass(frozen=True, slots=True)
class SavedPartition:
    pid: Pid
    epoch: Epoch
    next_sequence: Sequence
    last_offset: Offset | None
    """Of the last acknowledged record; None: nothing was written there."""


@dataclass(frozen=True, slots=True)
class ProducerIds:
    cluster_id: str | None
    name: str
    pid: Pid
    epoch: Epoch
    partitions: Mapping[TopicPartition, SavedPartition]

    def to_json(self) -> str:
        rows = [
            [topic, index, saved.pid, saved.epoch, saved.next_sequence, saved.last_offset]
            for (topic, index), saved in sorted(self.partitions.items())
        ]
        fields = {"cluster_id": self.cluster_id, "name": self.name, "pid": self.pid, "epoch": self.epoch}
        import json  # loaded only by those who save ids

        return json.dumps({**fields, "partitions": rows})

    @classmethod
    def from_json(cls, text: str) -> Self:
        import json

        try:
            fields: dict[str, Any] = json.loads(text)
            partitions = {
                TopicPartition(topic, index): SavedPartition(*saved) for topic, index, *saved in fields["partitions"]
            }
            return cls(fields["cluster_id"], fields["name"], fields["pid"], fields["epoch"], partitions)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"these are no saved ids of a producer: {error!r}") from error

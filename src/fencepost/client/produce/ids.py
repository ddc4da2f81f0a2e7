"""The ids that a producer saves with its input position, to resume later without duplicates (IDEM-4).

    with Producer(servers, name="enrich") as producer:         # the first time
    with Producer(servers, ids=saved) as producer:             # ever after
        …send what was made of the input…
        producer.flush()
        save(position, producer.ids)                           # in one place, at once

A process that crashes between two saves restarts with the older ids, and sends the records after them again. For each
partition the producer reads the log from the saved offset, finds the records of its pid, and settles their tickets
without sending them.
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
    """Of the last acknowledged record; None: no record was written there."""


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
        import json  # here, because few producers save ids

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
            raise ConfigError(f"the text has no saved ids, as ProducerIds.to_json writes them: {error!r}") from error

"""The ids that a producer saves with its input position, to resume later without duplicates (IDEM-4).

    with Producer(servers, name="enrich") as producer:         # the first time
    with Producer(servers, ids=saved) as producer:             # ever after
        …send what was made of the input…
        producer.flush()
        save(position, producer.ids)                           # in one place, at once

Ids hold a place in the log for each partition: behind the last acknowledged record, whichever run wrote it. A process
that crashes between two saves restarts with the older ids, and sends the records after them again. For each partition
the producer reads the log from the saved place, finds the records of its name, and settles their tickets without
sending them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fencepost.core.producers.pid import Identity
from fencepost.core.producers.recollection import SavedPlace
from fencepost.errors import ConfigError
from fencepost.types import Epoch, Offset, Pid, Sequence, TopicPartition

_FORMAT: Final = 2
"""Format 1 named a run of the producer instead of a place in the log. It could duplicate records (IDEM-4)."""


@dataclass(frozen=True, slots=True)
class ProducerIds:
    cluster_id: str | None
    name: str
    pids: frozenset[Pid]
    """All pids that the name has had, as far as is known."""
    partitions: Mapping[TopicPartition, SavedPlace]

    def to_json(self) -> str:
        import json  # here, because few producers save ids

        rows = [[*partition, *place_to_row(place)] for partition, place in sorted(self.partitions.items())]
        return json.dumps(
            {
                "format": _FORMAT,
                "cluster_id": self.cluster_id,
                "name": self.name,
                "pids": sorted(self.pids),
                "partitions": rows,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        import json

        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.get("format", 1 if "epoch" in fields else None) == 1:
                raise ConfigError(
                    "the ids were saved by an earlier version of fencepost (format 1), and resuming from them could "
                    "duplicate records: check which records the target has, then start with a new name= instead of ids="
                )
            partitions = {
                TopicPartition(topic, index): place_from_row(row) for topic, index, *row in fields["partitions"]
            }
            return cls(fields["cluster_id"], fields["name"], frozenset(fields["pids"]), partitions)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the text has no saved ids, as ProducerIds.to_json writes them: {error!r}") from error


def place_to_row(place: SavedPlace) -> list[Any]:
    return [place.topic_id, place.offset, *place.identity, place.next_sequence]


def place_from_row(row: list[Any]) -> SavedPlace:
    topic_id, offset, pid, epoch, next_sequence = row
    return SavedPlace(topic_id, Offset(offset), Identity(Pid(pid), Epoch(epoch)), Sequence(next_sequence))

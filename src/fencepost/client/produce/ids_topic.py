"""The topic `__fencepost_ids`: what runs of a named producer must know of each other although no ids were saved.

One compacted topic for all names. A run writes here, before its first record goes out,

    [name, pid]                a pid that its ids do not name: the server had forgotten the name
    [name, topic, partition]   the place at which the name begins in a partition that its ids do not name

Later runs read it. Whoever is late does no harm: pids are only added, and every place that is written for a partition
is before the name's first record there, because it is looked up before the fence and written after it
(`core/producers/recollection.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.routing import Routes
from fencepost.client.produce.ids import place_from_row, place_to_row
from fencepost.client.transactions.compacted_topic import CompactedTopic
from fencepost.client.transactions.shared_writer import LeaderChannels
from fencepost.core.producers.recollection import SavedPlace
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel import encode_batch
from fencepost.types import Milliseconds, Offset, Pid, TopicPartition

IDS_TOPIC: Final = "__fencepost_ids"

_FORBIDDEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


class WrittenDown(NamedTuple):
    pids: set[Pid]
    places: dict[TopicPartition, SavedPlace]


class IdsTopic:
    """The records of one name. Its methods wait for the server."""

    def __init__(self, routes: Routes, name: str) -> None:
        self._routes = routes
        self._topic = CompactedTopic(routes, IDS_TOPIC)
        self._name = name

    def exchange(self, pid: Pid, now_ms: Milliseconds, *, is_new: bool = False) -> WrittenDown:
        """Write the pid down, then return all that is written down. What is read reaches at least to that record, so a
        stale leader cannot hide anything that was written before. Unless the name `is_new`, its first run has written
        here: raise FencepostError if that is gone."""
        try:
            self._topic.ensure()
            end = self._topic.end(committed=False)
            found = WrittenDown(set(), {})
            self._read(self._topic.first(), end, found)
            if not is_new and not found.pids:
                raise FencepostError(
                    f"the topic {IDS_TOPIC!r} no longer has what the producer {self._name!r} has written there, so "
                    "nobody knows what it wrote elsewhere: find out which records the targets have, then start from "
                    "the right position with a new name= instead of ids="
                )
            last = self._append([([pid], "")], now_ms)
            self._read(end, Offset(last + 1), found)
            return found
        except ServerError as error:
            if error.code not in _FORBIDDEN:
                raise
            needs = f"saved ids need CREATE, DESCRIBE, READ and WRITE on the topic {IDS_TOPIC!r}"
            raise ServerError(error.code, f"{needs} ({error.reason})") from error

    def write_places(self, places: Mapping[TopicPartition, SavedPlace | None], now_ms: Milliseconds) -> None:
        """Write places down; None: forget the one that is there."""
        if places:
            rows = [(list(where), None if place is None else place_to_row(place)) for where, place in places.items()]
            self._append(rows, now_ms)

    def _append(self, rows: list[tuple[list[Any], Any]], now_ms: Milliseconds) -> Offset:
        """Append records and return the offset of the last one. A retry may repeat them, which changes nothing."""
        batch = encode_batch(
            [
                (_packed([self._name, *key]), None if value is None else _packed(value), now_ms, None)
                for key, value in rows
            ]
        )

        def append() -> Offset:
            with LeaderChannels(self._routes) as channels:
                channel = channels.to_leader(self._topic.where)
                channel.send_batches({self._topic.where: batch}, None)
                ((_, answer),) = channel.receive_produced()
                raise_for(answer.error_code, f"writing to {IDS_TOPIC}")
                return Offset(answer.base_offset + len(rows) - 1)

        return self._routes.retried(append)

    def _read(self, start: Offset, stop: Offset, found: WrittenDown) -> None:
        """Add what the records of this range say."""
        begin = _packed([self._name])[:-1] + b","
        for record in self._topic.records(start, stop):
            if record.key is None or not record.key.startswith(begin):
                continue
            _, *what = json.loads(record.key)
            if len(what) == 1:
                found.pids.add(Pid(what[0]))
            elif record.value is None:
                found.places.pop(TopicPartition(*what), None)
            else:
                found.places[TopicPartition(*what)] = place_from_row(json.loads(record.value))


def _packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

"""The places to start and to stop: the offsets that a place means in each partition, as of now.

With a group the start is where the group left off. Offsets that an open transaction may still change are waited for
(KIP-447): without that, the next reader would take up what its predecessor's transaction commits a moment later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.routing import Routes
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.types import EARLIEST, LATEST, CommittedElse, Offset, TopicPartition
from fencepost.wire.apis import OFFSET_FETCH_BY_NAME, Key

Place: TypeAlias = "Literal['earliest', 'latest', 'committed'] | int | datetime | Mapping[Any, int]"
"""A place to start or stop: an end of the log, the group's committed offsets, an offset (the same in each partition), a
time, or a mapping from `TopicPartition`, or from a partition's number, to an offset."""

log = logging.getLogger("fencepost.reader")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found


class FoundPlaces(NamedTuple):
    places: dict[TopicPartition, tuple[Offset, Offset | None]]
    """Where each partition starts and stops."""
    ids: Mapping[TopicPartition, UUID]
    """The ids of the topics in which these places are, as far as known."""


def committed_offsets(
    routes: Routes, group: str, partitions: Iterable[TopicPartition], ids: Mapping[str, UUID] = MappingProxyType({})
) -> dict[TopicPartition, Offset]:
    """Return the group's committed offsets, as far as there are any. Wait for those that are undecided.

    `ids`: of the topics; without all of them, the topics that have these names now are meant."""
    topics = [
        {"name": topic, "topic_id": ids.get(topic), "partition_indexes": indexes}
        for topic, indexes in by_topic(partitions).items()
    ]
    newest = OFFSET_FETCH_BY_NAME if any(topic["topic_id"] is None for topic in topics) else None
    names = {topic_id: name for name, topic_id in ids.items()}
    fields = {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": True,
    }

    def fetch() -> dict[TopicPartition, Offset]:
        channel = routes.to(routes.coordinator(group))
        answer = channel.request(Key.OFFSET_FETCH, fields, at_most=newest).message
        found = answer.groups[0] if hasattr(answer, "groups") else answer
        raise_for(getattr(found, "error_code", 0), f"the offsets of group {group!r}")
        stored: dict[TopicPartition, Offset] = {}
        for topic in found.topics:
            name = names[topic.topic_id] if hasattr(topic, "topic_id") else topic.name
            for row in topic.partitions:
                raise_for(row.error_code, f"the offset of {name}-{row.partition_index} in group {group!r}")
                if row.committed_offset >= 0:
                    stored[TopicPartition(name, row.partition_index)] = Offset(row.committed_offset)
        return stored

    return routes.retried(fetch)


class Places:
    """Finds places for one reader. Threads may share it; each call is several requests."""

    def __init__(self, start: Place, stop: Place | None, group: str | None, *, read_committed: bool) -> None:
        self.start = start
        self.stop = stop
        self._group = group
        self._read_committed = read_committed

    def find(
        self, admin: Admin, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[Offset, Offset | None]]:
        """Return where each partition starts and stops."""
        wanted = sorted(partitions)
        starts = self.offsets(admin, wanted, self.start)
        if isinstance(self.start, int | Mapping):
            _check_starts(admin, starts, all_beyond=isinstance(self.start, int))
        stops = self.stops(admin, wanted)
        return {partition: (starts[partition], stops.get(partition)) for partition in wanted}

    def find_in_group(self, admin: Admin, routes: Routes, partitions: Iterable[TopicPartition]) -> FoundPlaces:
        """Return where each assigned partition goes on: where the group left off, else at the start."""
        assert self._group is not None
        wanted = sorted(partitions)
        topics = routes.view(by_topic(wanted)).topics
        ids = {topic.name: topic.topic_id for topic in topics if getattr(topic, "topic_id", None) is not None}
        starts = committed_offsets(routes, self._group, wanted, ids)
        first = self.offsets(admin, starts, "earliest")
        for partition, offset in list(starts.items()):
            if offset < first[partition]:
                log.warning(
                    "%s: offset %d, where group %s left off, was deleted; the log begins at %d",
                    *(partition, offset, self._group, first[partition]),
                )
                del starts[partition]
        new = [partition for partition in wanted if partition not in starts]
        starts |= self.offsets(admin, new, "earliest" if self.start == "committed" else self.start)
        stops = self.stops(admin, wanted)
        places = {partition: (starts[partition], stops.get(partition)) for partition in wanted}
        return FoundPlaces(places, {each: ids[each.topic] for each in wanted if each.topic in ids})

    def offsets(self, admin: Admin, partitions: Iterable[TopicPartition], place: Place) -> dict[TopicPartition, Offset]:
        """Return the offset that `place` means in each partition."""
        found: dict[TopicPartition, Offset] = {}
        for topic, indexes in by_topic(partitions).items():
            for index, offset in self._in_topic(admin, topic, indexes, place).items():
                found[TopicPartition(topic, index)] = Offset(offset)
        return found

    def stops(self, admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, Offset]:
        return {} if self.stop is None else self.offsets(admin, partitions, self.stop)

    def _in_topic(self, admin: Admin, topic: str, indexes: list[int], place: Place) -> dict[int, int]:
        def at(time: int) -> dict[int, int]:
            committed = self._read_committed
            return {
                index: found.offset
                for index, found in admin.offsets(topic, time, partitions=indexes, read_committed=committed).items()
            }

        match place:
            case CommittedElse():
                return self._committed(admin, topic, at(LATEST if place == "latest" else EARLIEST))
            case "earliest":
                return at(EARLIEST)
            case "latest":
                return at(LATEST)
            case "committed":
                return self._committed(admin, topic, at(EARLIEST))
            case datetime():
                found, end = at(int(place.timestamp() * 1000)), at(LATEST)
                return {index: offset if offset >= 0 else end[index] for index, offset in found.items()}
            case int():
                return dict.fromkeys(indexes, place)
            case Mapping():
                given = {index: place.get(TopicPartition(topic, index), place.get(index)) for index in indexes}
                missing = [index for index, offset in given.items() if offset is None]
                if missing:
                    raise ConfigError(f"no offset given for {topic}, partition {', '.join(map(str, missing))}")
                return {index: int(offset) for index, offset in given.items() if offset is not None}
        raise ConfigError(
            f"{place!r} is not a place in a log: expected 'earliest', 'latest', 'committed', an offset or a datetime"
        )

    def _committed(self, admin: Admin, topic: str, otherwise: dict[int, int]) -> dict[int, int]:
        assert self._group is not None
        kept_by_group = admin.group_offsets(self._group)
        stored = {each.partition: each.committed for each in kept_by_group if each.topic == topic}
        return {index: end if (kept := stored.get(index)) is None else kept for index, end in otherwise.items()}


def _check_starts(admin: Admin, starts: Mapping[TopicPartition, Offset], *, all_beyond: bool) -> None:
    """Raise if the start lies beyond the end: the caller would wait for records that may never come.

    `all_beyond`: only if it does so in every partition, because one offset was given for all of them.
    """
    ends: dict[TopicPartition, int] = {}
    for topic, indexes in by_topic(starts).items():
        for index, end in admin.offsets(topic, LATEST, partitions=indexes).items():
            ends[TopicPartition(topic, index)] = end.offset
    beyond = [partition for partition, start in starts.items() if start > ends[partition]]
    if beyond and (not all_beyond or len(beyond) == len(starts)):
        first = beyond[0]
        raise ServerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"start={starts[first]} lies beyond the end of {first}, which is {ends[first]}; "
            "start='latest' waits for new records",
        )

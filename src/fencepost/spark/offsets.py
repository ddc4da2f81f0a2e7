"""The offsets that a micro-batch covers: pure planning over positions, partition → offset.

Checkpoints have the format of Spark's Kafka source, `{"topic": {"0": 23}}`, with two notes per topic:

    {"topic": {"0": 23, "1": 40, "id": "CLUSTER/TOPIC", "began": {"1": 7}}}

`id` has the ids of the cluster and of the topic. A topic that was deleted and recreated has another one, whatever its
offsets are; one that was moved to another cluster with its offsets may be read on. `began` is in the end of a
micro-batch, and says where those partitions begin of which the checkpoint has no earlier position: all of them in the
first micro-batch, new ones later. Spark writes down the end of a micro-batch before it runs it, but never the start of
the first one. With the note a crashed micro-batch is repeated from the same place, although retention or new records
have moved the place where the stream would start. Checkpoints of earlier versions have neither note.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from fencepost.client.read.ranges import DataLost, Range
from fencepost.errors import ConfigError
from fencepost.types import TopicPartition

Position: TypeAlias = Mapping[TopicPartition, int]
Stored: TypeAlias = Mapping[str, Mapping[str, Any]]
"""A position as it is in a checkpoint."""

_NOTHING: Final[Position] = MappingProxyType({})
_ID: Final = "id"
_BEGAN: Final = "began"


def by_topic(position: Position) -> dict[str, dict[int, int]]:
    """Return topic → partition → offset, in order."""
    found: dict[str, dict[int, int]] = {}
    for where, at in sorted(position.items()):
        found.setdefault(where.topic, {})[where.partition] = at
    return found


def to_json(
    position: Position, ids: Mapping[str, str] = MappingProxyType({}), began: Position = _NOTHING
) -> dict[str, dict[str, Any]]:
    stored: dict[str, dict[str, Any]] = {}
    begins = by_topic(began)
    for topic, partitions in by_topic(position).items():
        stored[topic] = {str(partition): at for partition, at in partitions.items()}
        if topic in ids:
            stored[topic][_ID] = ids[topic]
        if topic in begins:
            stored[topic][_BEGAN] = {str(partition): at for partition, at in begins[topic].items()}
    return stored


def from_json(stored: Stored) -> dict[TopicPartition, int]:
    """Return the position, without the notes."""
    return {
        TopicPartition(topic, int(partition)): int(at)
        for topic, partitions in stored.items()
        for partition, at in partitions.items()
        if partition not in (_ID, _BEGAN)
    }


def ids(stored: Stored) -> dict[str, str]:
    """Return the ids that the topics had."""
    return {topic: partitions[_ID] for topic, partitions in stored.items() if _ID in partitions}


def began(stored: Stored) -> dict[TopicPartition, int]:
    """Return where the micro-batch with this end begins, for those partitions that it notes."""
    return from_json({topic: partitions[_BEGAN] for topic, partitions in stored.items() if _BEGAN in partitions})


def recreated(stored: Stored, now: Mapping[str, str]) -> dict[str, str]:
    """Return the topics, with their old ids, that have another id now, in the same cluster."""

    def is_other(known: str, present: str) -> bool:
        return known != present and known.rpartition("/")[0] == present.rpartition("/")[0]

    return {topic: known for topic, known in ids(stored).items() if is_other(known, now.get(topic, known))}


def without(position: Position, known: Position) -> dict[TopicPartition, int]:
    """Return the offsets of those partitions that `known` does not have."""
    return {where: at for where, at in position.items() if where not in known}


def completed(start: Position, stop: Position, earliest: Position) -> dict[TopicPartition, int]:
    """Return `start`, with the first offset of each partition that only `stop` has."""
    return {**{where: earliest.get(where, 0) for where in stop}, **start}


def not_behind(start: Position, stop: Position) -> dict[TopicPartition, int]:
    """Return `start`, nowhere behind `stop`, and only where `stop` has a partition."""
    return {where: min(at, stop[where]) for where, at in start.items() if where in stop}


def count(start: Position, stop: Position) -> int:
    """Count the offsets between the two; a partition that `start` does not have counts from 0."""
    return sum(max(0, at - start.get(where, 0)) for where, at in stop.items())


def limited(start: Position, stop: Position, most: int, *, leeway: int = 0) -> dict[TopicPartition, int]:
    """Return `stop`, reduced to at most `most` offsets after `start`, in proportion to each partition's share. A
    partition whose share is below one offset still gets one, beyond `most`, so that none starves.

    If no more than `leeway` offsets would be left for later, take them, too."""
    total = count(start, stop)
    if total <= most + leeway:
        return dict(stop)
    drawn: dict[TopicPartition, int] = {}
    for where, at in stop.items():
        begin = start.get(where, 0)
        size = max(0, at - begin)
        share = max(1, size * most // total) if size else 0
        drawn[where] = max(begin, min(at, begin + share))
    return drawn


def ranges(start: Position, stop: Position, *, at_least: int | None = None, at_most: int | None = None) -> list[Range]:
    """Return one range per partition with new offsets. Cut those with more than `at_most` offsets; then, if there are
    less than `at_least` ranges, the larger ones."""
    whole = [Range(*where, start.get(where, 0), at) for where, at in sorted(stop.items()) if at > start.get(where, 0)]
    if at_most is not None:
        whole = [part for wanted in whole for part in _cut(wanted, ceil((wanted.stop - wanted.start) / at_most))]
    if at_least is None or len(whole) >= at_least or not whole:
        return whole
    total = sum(wanted.stop - wanted.start for wanted in whole)
    return [part for wanted in whole for part in _cut(wanted, ceil(at_least * (wanted.stop - wanted.start) / total))]


def _cut(wanted: Range, parts: int) -> Iterable[Range]:
    size = wanted.stop - wanted.start
    parts = max(1, min(parts, size))
    edges = [wanted.start + size * part // parts for part in range(parts + 1)]
    return [Range(wanted.topic, wanted.partition, start, stop) for start, stop in pairwise(edges)]


def shares(ranges: Iterable[Range], most: int) -> list[list[Range]]:
    """Distribute the ranges over at most `most` lists, each with about the same number of offsets."""
    found: list[list[Range]] = [[] for _ in range(max(1, most))]
    sizes = [(0, index) for index in range(len(found))]
    for wanted in sorted(ranges, key=lambda each: each.start - each.stop):  # the largest first
        size, index = heappop(sizes)
        found[index].append(wanted)
        heappush(sizes, (size + wanted.stop - wanted.start, index))
    return [share for share in found if share]


def check_nothing_lost(start: Position, earliest: Position, latest: Position) -> None:
    """Raise DataLost if the stream would resume at an offset that is deleted, or that the log has not reached."""
    for where, at in start.items():
        first, last = earliest.get(where), latest.get(where)
        if first is None or last is None:
            why = "the partition does not exist any more"
        elif at < first:
            why = f"the log starts at {first} now: retention deleted the records before"
        elif at > last:
            why = f"the log ends at {last}: was the topic recreated?"
        else:
            continue
        raise DataLost(
            f"{where}: the stream resumes at offset {at}, but {why}. failOnDataLoss=false continues with the records "
            "that are left"
        )


def check_from_the_first(begin: Position) -> None:
    """Raise DataLost if a partition that the stream has not read before has lost its first records."""
    for where, at in begin.items():
        if at > 0:
            raise DataLost(
                f"{where} is new to the stream, but its log starts at {at}: the records before were deleted before "
                "they were read. failOnDataLoss=false continues with the records that are left"
            )


def check_order(start: Position, stop: Position) -> None:
    """Raise ConfigError if a batch would start behind its end."""
    for where, at in start.items():
        if at > (end := stop.get(where, at)):
            raise ConfigError(
                f"the batch would start at offset {at} of {where}, behind its end {end}: set startingOffsets to an "
                "earlier one, or endingOffsets to a later one"
            )


def clamped(start: Position, earliest: Position, latest: Position) -> dict[TopicPartition, int]:
    """Move `start` into the present bounds of the log, and drop partitions that do not exist any more."""
    return {
        where: min(max(at, earliest[where]), latest[where])
        for where, at in start.items()
        if where in earliest and where in latest
    }

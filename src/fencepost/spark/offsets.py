"""The offsets that a micro-batch covers: pure planning over positions, topic → partition → offset.

Checkpoints have the format of Spark's Kafka source, `{"topic": {"0": 23}}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil
from typing import Any, TypeAlias

from fencepost.client.read.ranges import DataLost, Range

Position: TypeAlias = Mapping[str, Mapping[int, int]]


def to_json(position: Position) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for topic, partitions in sorted(position.items())
    }


def from_json(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    return {topic: {int(p): int(at) for p, at in partitions.items()} for topic, partitions in stored.items()}


def completed(start: Position, stop: Position, earliest: Position) -> dict[str, dict[int, int]]:
    """Return `start`, with the first offset of each partition that only `stop` has."""
    return {
        topic: {
            **{partition: earliest.get(topic, {}).get(partition, 0) for partition in stop.get(topic, {})},
            **start.get(topic, {}),
        }
        for topic in {**start, **stop}
    }


def not_behind(start: Position, stop: Position) -> dict[str, dict[int, int]]:
    """Return `start`, nowhere behind `stop`, and only where `stop` has a partition."""
    return {
        topic: {p: min(at, stop[topic][p]) for p, at in partitions.items() if p in stop[topic]}
        for topic, partitions in start.items()
        if topic in stop
    }


def count(start: Position, stop: Position) -> int:
    """Count the offsets between the two; a partition that `start` does not have counts from 0."""
    return sum(
        max(0, at - start.get(topic, {}).get(partition, 0))
        for topic, partitions in stop.items()
        for partition, at in partitions.items()
    )


def limited(start: Position, stop: Position, most: int, *, leeway: int = 0) -> dict[str, dict[int, int]]:
    """Return `stop`, reduced to at most `most` offsets after `start`, in proportion to each partition's share. A
    partition whose share is below one offset still gets one, beyond `most`, so that none starves.

    If no more than `leeway` offsets would be left for later, take them, too."""
    total = count(start, stop)
    if total <= most + leeway:
        return {topic: dict(partitions) for topic, partitions in stop.items()}
    drawn: dict[str, dict[int, int]] = {}
    for topic, partitions in stop.items():
        for partition, at in partitions.items():
            begin = start.get(topic, {}).get(partition, 0)
            size = max(0, at - begin)
            share = max(1, size * most // total) if size else 0
            drawn.setdefault(topic, {})[partition] = max(begin, min(at, begin + share))
    return drawn


def ranges(start: Position, stop: Position, *, at_least: int | None = None) -> list[Range]:
    """Return one range per partition with new offsets; split the larger ones until there are `at_least` ranges."""
    whole = [
        Range(topic, partition, start.get(topic, {}).get(partition, 0), at)
        for topic, partitions in sorted(stop.items())
        for partition, at in sorted(partitions.items())
        if at > start.get(topic, {}).get(partition, 0)
    ]
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
    for topic, partitions in start.items():
        for partition, at in partitions.items():
            first, last = earliest.get(topic, {}).get(partition), latest.get(topic, {}).get(partition)
            if first is None or last is None:
                why = "the partition does not exist any more"
            elif at < first:
                why = f"the log starts at {first} now: retention deleted the records before"
            elif at > last:
                why = f"the log ends at {last}: was the topic recreated?"
            else:
                continue
            raise DataLost(
                f"{topic}-{partition}: the stream resumes at offset {at}, but {why}. failOnDataLoss=false continues "
                "with the records that are left"
            )


def clamped(start: Position, earliest: Position, latest: Position) -> dict[str, dict[int, int]]:
    """Move `start` into the present bounds of the log, and drop partitions that do not exist any more."""
    return {
        topic: {
            partition: min(max(at, earliest[topic][partition]), latest[topic][partition])
            for partition, at in partitions.items()
            if partition in earliest[topic] and partition in latest[topic]
        }
        for topic, partitions in start.items()
        if topic in earliest and topic in latest
    }

"""The families with a series per partition, topic or group, as text in Prometheus' format.

A scrape of a thousand partitions has ten thousand of these lines. So the labels of a partition are formatted once, for
all of its series, and the lines of a topic or group in which nothing has changed are those of the last scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

from fencepost.server.metrics.state import CommittedOffset, GroupRow, PartitionState

_OF_PARTITIONS: Final = (
    ("kafka_topic_partition_current_offset", "End of the partition."),
    ("kafka_topic_partition_oldest_offset", "Start of the partition."),
    (
        "fencepost_partition_undecided_offsets",
        "Offsets behind the last stable offset, which readers of committed records do not see yet.",
    ),
    ("fencepost_partition_bytes", "Size on disk."),
    ("fencepost_partition_producers", "Remembered producers."),
    ("kafka_topic_partition_leader", "Node id of the leader."),
)
_OF_GROUPS: Final = (
    ("kafka_consumergroup_current_offset", "Committed offset."),
    ("kafka_consumergroup_lag", "Offsets from the committed one to the end."),
    (
        "fencepost_consumergroup_lag_records",
        "Records from the committed offset to the last stable one, without those of aborted transactions.",
    ),
)
PER_PARTITION: Final = len(_OF_PARTITIONS)
"""Series of a partition."""
PER_GROUP_PARTITION: Final = len(_OF_GROUPS)
"""Series of a group's committed offset."""

_Offsets: TypeAlias = list[tuple[str, int, int, int | None, int | None]]


def _head(name: str, doc: str) -> str:
    return f"# HELP {name} {doc}\n# TYPE {name} gauge\n"


def _lines(name: str, labels: Iterable[str], values: Iterable[object]) -> str:
    return "".join([f"{name}{{{label}}} {value}\n" for label, value in zip(labels, values, strict=True)])


def by_names(
    name: str, doc: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
) -> Iterator[str]:
    """Return a family of gauges with these labels."""
    known = list(rows)
    texts = [
        ",".join([f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)])
        for values, _ in known
    ]
    yield _head(name, doc) + _lines(name, texts, [value for _, value in known])


class WideText:
    """The lines by partition, and those of the last scrape. Used by one thread at a time."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[list[PartitionState], list[str]]] = {}
        self._groups: dict[str, tuple[_Offsets, list[str]]] = {}

    def partitions(self, rows: Iterable[PartitionState], node_id: int) -> Iterator[str]:
        """Return the families of partitions; those of a topic must follow each other."""
        known = {}
        for topic, found in groupby(rows, key=attrgetter("topic")):
            these = list(found)
            before = self._topics.get(topic)
            same = before is not None and before[0] == these
            known[topic] = before if same and before is not None else (these, _partition_lines(these, node_id))
        self._topics = known
        return _families(_OF_PARTITIONS, [lines for _, lines in known.values()])

    def group_partitions(
        self,
        groups: Iterable[GroupRow],
        is_named: Callable[[str], bool],
        record_lag: Callable[[str, CommittedOffset], int | None],
    ) -> Iterator[str]:
        """Return the families of committed offsets, of topics that have series of their own."""
        known = {}
        for group in groups:
            these: _Offsets = [
                (*row.where, row.committed, row.lag, record_lag(group.name, row))
                for row in group.offsets
                if is_named(row.where.topic)
            ]
            before = self._groups.get(group.name)
            same = before is not None and before[0] == these
            known[group.name] = before if same and before is not None else (these, _group_lines(group.name, these))
        self._groups = known
        return _families(_OF_GROUPS, [lines for _, lines in known.values()])


def _families(families: Sequence[tuple[str, str]], blocks: list[list[str]]) -> Iterator[str]:
    for number, (name, doc) in enumerate(families):
        yield _head(name, doc)
        for block in blocks:
            yield block[number]


def _partition_lines(rows: list[PartitionState], node_id: int) -> list[str]:
    labels = [f'topic="{row.topic}",partition="{row.number}"' for row in rows]  # names of topics need no escape
    values: tuple[list[int], ...] = (
        [row.end for row in rows],
        [row.start for row in rows],
        [row.end - row.stable for row in rows],
        [row.size for row in rows],
        [row.producers for row in rows],
        [node_id] * len(rows),
    )
    return [_lines(name, labels, each) for (name, _), each in zip(_OF_PARTITIONS, values, strict=True)]


def _group_lines(group: str, rows: _Offsets) -> list[str]:
    name = _escaped(group)
    labels = [f'consumergroup="{name}",topic="{row[0]}",partition="{row[1]}"' for row in rows]
    found = []
    for at, (family, _) in enumerate(_OF_GROUPS, 2):
        known = [(label, row[at]) for label, row in zip(labels, rows, strict=True) if row[at] is not None]
        found.append(_lines(family, [label for label, _ in known], [value for _, value in known]))
    return found


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

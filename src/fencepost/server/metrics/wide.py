"""The families with a series per partition, as text in Prometheus' format.

A scrape of a thousand partitions has ten thousand of these lines. So a family in which nothing has changed is that of
the last scrape, and in others only the lines of topics and groups in which something has changed are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from fencepost.server.metrics.columns import GroupColumns, GroupRows, PartitionColumns, TopicRows
from fencepost.server.metrics.exposition import escaped, head

_Values: TypeAlias = Sequence[int | None]


class _LabelledRows(NamedTuple):
    """Rows that differ only by their partition."""

    labels: str
    first: int
    stop: int


class _WideFamily:
    """A family, with its text at the last scrape."""

    def __init__(self, name: str, doc: str) -> None:
        self._name = name
        self._head = head(name, doc)
        self._seen: tuple[list[_LabelledRows], list[int], _Values] | None = None
        self._text = b""
        self._lines: dict[str, tuple[list[int], _Values, str]] = {}
        """By their labels: the partitions, the values and the lines."""

    def text(self, rows: list[_LabelledRows], numbers: list[int], values: _Values) -> bytes:
        """Return the text. A row without a value has no line."""
        seen = rows, numbers, values
        if seen == self._seen:
            return self._text
        lines = {}
        for labels, first, stop in rows:
            of, these = numbers[first:stop], values[first:stop]
            before = self._lines.get(labels)
            if before is None or before[0] != of or before[1] != these:
                start = f'{self._name}{{{labels},partition="'
                text = "".join(
                    [f'{start}{n}"}} {value}\n' for n, value in zip(of, these, strict=True) if value is not None]
                )
                before = of, these, text
            lines[labels] = before
        self._seen, self._lines = seen, lines
        self._text = (self._head + "".join([text for _, _, text in lines.values()])).encode()
        return self._text


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


class WideText:
    """The families, and their texts at the last scrape. Used by one thread at a time."""

    def __init__(self) -> None:
        self._partitions = [_WideFamily(*each) for each in _OF_PARTITIONS]
        self._groups = [_WideFamily(*each) for each in _OF_GROUPS]

    def partitions(self, topics: Iterable[TopicRows], columns: PartitionColumns, node_id: int) -> list[bytes]:
        """Return the families of partitions, of these topics."""
        # Names of topics need no escape.
        rows = [_LabelledRows(f'topic="{topic.name}"', topic.first, topic.stop) for topic in topics]
        values: tuple[list[int], ...] = (
            columns.ends,
            columns.starts,
            [end - stable for end, stable in zip(columns.ends, columns.stables, strict=True)],
            columns.sizes,
            columns.producers,
            [node_id] * len(columns),
        )
        return [family.text(rows, columns.numbers, each) for family, each in zip(self._partitions, values, strict=True)]

    def group_partitions(
        self, groups: Iterable[GroupRows], columns: GroupColumns, is_named: Callable[[str], bool]
    ) -> list[bytes]:
        """Return the families of committed offsets of these groups, of topics that have series of their own."""
        rows = []
        for group in groups:
            name = escaped(group.name)
            rows += [
                _LabelledRows(f'consumergroup="{name}",topic="{topic}"', first, stop)
                for topic, first, stop in group.topics
                if is_named(topic)
            ]
        values: tuple[_Values, ...] = columns.committed, columns.lags, columns.records
        return [family.text(rows, columns.numbers, each) for family, each in zip(self._groups, values, strict=True)]

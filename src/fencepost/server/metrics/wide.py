"""The families with a series per partition, topic or group, as text in Prometheus' format.

A scrape of a thousand partitions has ten thousand of these lines. So the labels of a partition are formatted once, for
all of its series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from fencepost.server.metrics.state import GroupRow, PartitionState
from fencepost.types import TopicPartition

PER_PARTITION: Final = 6
"""Series of a partition."""
PER_GROUP_PARTITION: Final = 3
"""Series of a group's committed offset."""


def _family(name: str, doc: str, labels: Iterable[str], values: Iterable[object]) -> str:
    lines = [f"{name}{{{label}}} {value}\n" for label, value in zip(labels, values, strict=True)]
    return f"# HELP {name} {doc}\n# TYPE {name} gauge\n" + "".join(lines)


def by_names(
    name: str, doc: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
) -> Iterator[str]:
    """Return a family of gauges with these labels."""
    known = list(rows)
    texts = [
        ",".join([f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)])
        for values, _ in known
    ]
    yield _family(name, doc, texts, [value for _, value in known])


def partitions(rows: list[PartitionState], node_id: int) -> Iterator[str]:
    labels = [f'topic="{row.topic}",partition="{row.number}"' for row in rows]  # names of topics need no escape
    for name, doc, values in (
        ("kafka_topic_partition_current_offset", "End of the partition.", [row.end for row in rows]),
        ("kafka_topic_partition_oldest_offset", "Start of the partition.", [row.start for row in rows]),
        (
            "fencepost_partition_undecided_offsets",
            "Offsets behind the last stable offset, which readers of committed records do not see yet.",
            [row.end - row.stable for row in rows],
        ),
        ("fencepost_partition_bytes", "Size on disk.", [row.size for row in rows]),
        ("fencepost_partition_producers", "Remembered producers.", [row.producers for row in rows]),
        ("kafka_topic_partition_leader", "Node id of the leader.", [node_id] * len(rows)),
    ):
        yield _family(name, doc, labels, values)


def group_partitions(
    groups: Iterable[GroupRow], is_named: Callable[[str], bool], counted: Mapping[tuple[str, TopicPartition], int]
) -> Iterator[str]:
    rows: list[tuple[str, int, int | None, int | None]] = []
    for group in groups:
        name = _escaped(group.name)
        for where, committed, lag, _ in group.offsets:
            if is_named(where.topic):
                label = f'consumergroup="{name}",topic="{where.topic}",partition="{where.partition}"'
                rows.append((label, committed, lag, counted.get((group.name, where))))
    for family, doc, at in (
        ("kafka_consumergroup_current_offset", "Committed offset.", 1),
        ("kafka_consumergroup_lag", "Offsets from the committed one to the end.", 2),
        (
            "fencepost_consumergroup_lag_records",
            "Records from the committed offset to the last stable one, without those of aborted transactions.",
            3,
        ),
    ):
        known = [row for row in rows if row[at] is not None]
        yield _family(family, doc, [row[0] for row in known], [row[at] for row in known])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

"""Families of metrics as text in Prometheus' format.

prometheus_client does the same, and takes several microseconds for each of the hundreds of lines of a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from fencepost.server.counters import LATENCY_BOUNDS, Distribution

Labels: TypeAlias = tuple[str, ...]
"""Names of labels, or the values of a row."""

PartitionValues: TypeAlias = list[tuple[str, Sequence[int], Sequence[int | None]]]
"""The text of labels, the partitions that have them, and their values."""

_BOUND_NAMES: Final = (*(format(bound, "g") for bound in LATENCY_BOUNDS), "+Inf")


def head(name: str, doc: str, kind: str = "gauge") -> str:
    """Return the lines before those of a family."""
    return f"# HELP {name} {doc}\n# TYPE {name} {kind}\n"


def escaped(value: str) -> str:
    """Return a label's value as it stands between quotes."""
    if "\\" in value or "\n" in value or '"' in value:
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value


def gauge(name: str, doc: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> str:
    return head(name, doc) + _lines(name, labels, rows)


def counter(name: str, doc: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> str:
    """Return a family of counters; `name` is without the ending that Prometheus gives them."""
    return head(f"{name}_total", doc, "counter") + _lines(f"{name}_total", labels, rows)


class PartitionFamilies:
    """Families with a series per partition. A scrape of a thousand partitions has ten thousand of these lines, so the
    text of a family in which nothing has changed is that of the last scrape. Used by one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[PartitionValues, bytes]] = {}

    def text(self, name: str, doc: str, rows: PartitionValues) -> bytes:
        """Return a family. A partition without a value has no line."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != rows:
            lines = [head(name, doc)]
            for labels, numbers, values in rows:
                start = f'{name}{{{labels},partition="'
                lines += [
                    f'{start}{n}"}} {each}\n' for n, each in zip(numbers, values, strict=True) if each is not None
                ]
            kept = self._kept[name] = rows, "".join(lines).encode()
        return kept[1]


def histogram(name: str, doc: str, labels: Labels, rows: Iterable[tuple[Labels, Distribution]]) -> str:
    lines = [head(name, doc, "histogram")]
    for values, found in rows:
        own = _pairs(labels, values)
        start = f"{name}_bucket{{{own}," if own else f"{name}_bucket{{"
        so_far = 0
        for bound, count in zip(_BOUND_NAMES, found.counts, strict=True):
            so_far += count
            lines.append(f'{start}le="{bound}"}} {so_far}\n')
        braces = f"{{{own}}}" if own else ""
        lines.append(f"{name}_count{braces} {so_far}\n{name}_sum{braces} {found.total}\n")
    return "".join(lines)


def _lines(name: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> str:
    if not labels:
        return "".join([f"{name} {value}\n" for _, value in rows])
    return "".join([f"{name}{{{_pairs(labels, values)}}} {value}\n" for values, value in rows])


def _pairs(labels: Labels, values: Labels) -> str:
    return ",".join([f'{label}="{escaped(value)}"' for label, value in zip(labels, values, strict=True)])

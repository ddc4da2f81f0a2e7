"""Families of metrics as text in Prometheus' format.

prometheus_client does the same, and takes several microseconds for each of the hundreds of lines of a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fencepost.server.counters import LATENCY_BOUNDS, Distribution

Labels: TypeAlias = tuple[str, ...]
"""Names of labels, or the values of a row."""
Value: TypeAlias = float | Distribution
_BOUND_NAMES: Final = (*(format(bound, "g") for bound in LATENCY_BOUNDS), "+Inf")


class Family(NamedTuple):
    name: str
    """Of a counter, with the ending `_total`."""
    doc: str
    labels: Labels
    rows: Iterable[tuple[Labels, Value]]

    @classmethod
    def one(cls, name: str, doc: str, value: Value) -> Family:
        return cls(name, doc, (), [((), value)])

    @classmethod
    def by(cls, label: str, name: str, doc: str, values: Mapping[str, Value]) -> Family:
        return cls(name, doc, (label,), [((each,), value) for each, value in values.items()])

    def text(self) -> str:
        """A family of distributions is a histogram; others are counters or gauges, by the ending of their name."""
        name, kind, lines = self.name, "counter" if self.name.endswith("_total") else "gauge", []
        for values, value in self.rows:
            own = ",".join([f'{label}="{escaped(each)}"' for label, each in zip(self.labels, values, strict=True)])
            braces = f"{{{own}}}" if own else ""
            if not isinstance(value, Distribution):
                lines.append(f"{name}{braces} {value}\n")
                continue
            kind, so_far, start = "histogram", 0, f"{own}," if own else ""
            for bound, count in zip(_BOUND_NAMES, value.counts, strict=True):
                so_far += count
                lines.append(f'{name}_bucket{{{start}le="{bound}"}} {so_far}\n')
            lines.append(f"{name}_count{braces} {so_far}\n{name}_sum{braces} {value.total}\n")
        return f"# HELP {name} {self.doc}\n# TYPE {name} {kind}\n" + "".join(lines)


def places(labels: str, partitions: Iterable[int]) -> list[str]:
    """Return what stands between the name and the value of a series, for each partition."""
    return [f'{{{labels},partition="{each}"}} ' for each in partitions]


def by_partition(name: str, doc: str, rows: Iterable[tuple[list[str], Sequence[int | None]]]) -> str:
    """Return a family with a series per partition, of which each row has the places and the values. A partition without
    a value has no line. A scrape of a thousand partitions has ten thousand of these lines."""
    lines = [f"# HELP {name} {doc}\n# TYPE {name} gauge\n"]
    for where, values in rows:
        lines += [f"{name}{place}{value}\n" for place, value in zip(where, values, strict=True) if value is not None]
    return "".join(lines)


def escaped(value: str) -> str:
    """Return a label's value as it stands between quotes."""
    if "\\" in value or "\n" in value or '"' in value:
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value

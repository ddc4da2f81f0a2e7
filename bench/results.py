"""Figures as they come in: series of one value per repetition, kept as JSON beside machine, versions and date."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

Labels: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class Series:
    """The figures of one thing on one broker, a value per repetition."""

    section: str
    labels: Labels
    """What was measured: client, size, codec, … in the order in which people read them."""
    target: str
    """Whose figure it is: a broker, or one way of two to do the same."""
    unit: str
    values: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    """CPU seconds that the server needed, where it makes sense to ask."""
    client_cpu: list[float] = field(default_factory=list)
    """CPU seconds that the client needed, where both sides share the cores and the client may be the limit."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


class Results:
    def __init__(self, about: dict[str, Any], path: Path | None = None) -> None:
        self.about = about
        """Machine, versions, date, and how the run was made."""
        self.path = path
        self._series: dict[tuple[str, Labels, str], Series] = {}

    def add(
        self,
        section: str,
        labels: Labels,
        target: str,
        unit: str,
        value: float,
        *,
        server_cpu: float | None = None,
        client_cpu: float | None = None,
    ) -> None:
        """Notes one figure, and saves: a run that is cut off has still measured something."""
        key = section, labels, target
        series = self._series.setdefault(key, Series(section, labels, target, unit))
        series.values.append(round(value, 4))
        if server_cpu is not None:
            series.server_cpu.append(round(server_cpu, 3))
        if client_cpu is not None:
            series.client_cpu.append(round(client_cpu, 3))
        self.save()

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series.values())

    def get(self, section: str, labels: Labels, target: str) -> Series | None:
        return self._series.get((section, labels, target))

    def sections(self) -> list[str]:
        return list(dict.fromkeys(series.section for series in self))

    def labels(self, section: str) -> list[Labels]:
        return list(dict.fromkeys(series.labels for series in self if series.section == section))

    def targets(self, section: str) -> list[str]:
        return list(dict.fromkeys(series.target for series in self if series.section == section))

    def save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One series per line: small, and a second run shows as a difference that can be read.
        rows = ",\n".join("  " + json.dumps(dataclasses.asdict(series)) for series in self)
        about = json.dumps(self.about, indent=1)
        self.path.write_text(f'{{"about": {about},\n"series": [\n{rows}\n]}}\n')

    @classmethod
    def load(cls, path: Path) -> Self:
        data = json.loads(path.read_text())
        results = cls(data["about"])
        for row in data["series"]:
            series = Series(**{**row, "labels": tuple(row["labels"])})
            results._series[series.section, series.labels, series.target] = series
        return results

"""The pictures of `python -m bench growth`: one per question, a panel per metric, a curve per client and broker."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.brokers import KAFKA
from bench.growth import plan
from bench.results import Results, Series

_COLOURS = {"fencepost": "#2a7f62", "confluent": "#c77f2a"}
_SERVER = {True: "#b5483a", False: "#2a7f62"}
"""By whether the server is Apache Kafka."""


def draw(results: Results, path: Path) -> list[Path]:
    """A PNG of well under 150 kB for each question that was asked."""
    drawn = []
    for question, axis in plan.AXES.items():
        panels: dict[str, list[Series]] = {}
        for series in results:
            if (metric := plan.metric_of(series, question)) is not None:
                panels.setdefault(metric, []).append(series)
        if panels:
            picture = path.with_stem(f"{path.stem}-{question}")
            _draw_question(results, axis, panels, picture)
            drawn.append(picture)
    return drawn


def _draw_question(results: Results, axis: str, panels: dict[str, list[Series]], path: Path) -> None:
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4 * columns, 0.8 + 2.9 * rows), squeeze=False)
    places = list(grid.flat)
    for axes, (metric, curves) in zip(places, panels.items(), strict=False):
        _panel(axes, metric, axis, curves)
    for unused in places[len(panels) :]:
        unused.set_visible(False)
    about, machine = results.about, results.about["machine"]
    figure.suptitle(
        f"{axis}: {about['date']}, {machine['cores']} cores {machine['cpu']}, "
        f"Kafka {about['versions']['Apache Kafka']}, {about['run']}, load before {machine['load_before']}",
        fontsize=8,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _panel(axes: Axes, metric: str, axis: str, curves: list[Series]) -> None:
    """Draw one line per target through the medians, with a bar from the smallest to the largest value."""
    by_target: dict[str, list[tuple[int, Series]]] = {}
    for series in curves:
        by_target.setdefault(series.target, []).append((plan.place(series.labels[0]), series))
    for target, points in by_target.items():
        points.sort(key=lambda point: point[0])
        at = [place for place, _ in points]
        middle = [series.median for _, series in points]
        below = [series.median - min(series.values) for _, series in points]
        above = [max(series.values) - series.median for _, series in points]
        on_kafka = target.endswith(KAFKA)
        client = target.partition(" → ")[0] if " → " in target else ""
        colour = _COLOURS.get(client, _SERVER[on_kafka])
        style = "--" if on_kafka else "-"
        axes.errorbar(at, middle, (below, above), label=target, color=colour, linestyle=style, marker="o", markersize=3)
    values = [value for series in curves for value in series.values]
    axes.set_xscale("symlog" if any(plan.place(series.labels[0]) == 0 for series in curves) else "log")
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0, *values))
    axes.set_title(f"{metric}, {curves[0].unit}".rstrip(", "), fontsize=8)
    axes.set_xlabel(axis, fontsize=7)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

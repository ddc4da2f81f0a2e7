"""One picture of a run: every comparison with Kafka as a bar, how many times better (right of the line) or worse."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from bench.brokers import KAFKA
from bench.goals import Judgement, judge
from bench.results import Results
from bench.side_by_side.plan import CONFLUENT
from bench.spark.names import CONNECTOR

_BESIDE = {
    KAFKA: ("fencepost serve --sync os beside Apache Kafka, same clients, same machine", "Apache Kafka"),
    CONFLUENT: ("fencepost's clients beside confluent-kafka, same machine", "confluent-kafka with Apache Kafka"),
    CONNECTOR: ("fencepost.spark, exactly once, beside Spark's own Kafka connector, at least once", "the connector"),
}
"""Baseline → title, and what the bars compare with."""
_BETTER, _WORSE, _SPREAD = "#2a7f62", "#b5483a", "#333333"


def draw(results: Results, path: Path) -> bool:
    """A PNG of well under 150 kB, if there is something to compare."""
    rows = [judgement for judgement in judge(results) if judgement.goal.baseline in _BESIDE]
    if not rows:
        return False
    title, other = _BESIDE[rows[0].goal.baseline or KAFKA]
    height = 1.5 + 0.3 * len(rows)
    figure, axes = plt.subplots(figsize=(9, height))
    for place, row in enumerate(reversed(rows)):
        factors = sorted(_factor(row, value) for value in row.values)
        middle = _factor(row, row.median)
        axes.barh(place, middle - 1, left=1, color=_BETTER if row.met else _WORSE, height=0.62)
        axes.plot((factors[0], factors[-1]), (place, place), color=_SPREAD, linewidth=1.2)
        axes.text(max(middle, factors[-1], 1) * 1.04, place, f"{middle:.2f} ×", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [_name(row) for row in reversed(rows)], fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 1.35)
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"times better than {other} (bar: median of pairs, line: min to max)", fontsize=8)
    about, machine = results.about, results.about["machine"]
    figure.suptitle(title, fontsize=10)
    figure.text(
        0.5,
        1 - 0.45 / height,
        f"{about['date']} · {machine['cores']} cores {machine['cpu']}, {machine['memory_gib']} GiB · "
        f"Kafka {about['versions']['Apache Kafka']}, Python {about['versions']['Python']} · {about['run']}",
        ha="center",
        fontsize=7,
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.5 / height))
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _factor(row: Judgement, ratio: float) -> float:
    """More is better, also where the figure is a time or a size."""
    return ratio if row.goal.at_least else 1 / ratio


def _name(row: Judgement) -> str:
    who = [row.goal.ours] if row.goal.baseline in (CONFLUENT, CONNECTOR) else []
    text = " ".join((row.goal.section, *row.labels, *who))
    return (
        text
        if row.goal.bound == 1
        else f"{text} (goal {row.goal.bound if row.goal.at_least else 1 / row.goal.bound:g} ×)"
    )

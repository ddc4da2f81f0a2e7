"""The picture of `python -m bench.own`: what a take-over takes, and what others notice of ownership."""

from __future__ import annotations

import random
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench import own
from bench.results import Results

_GOAL_MS = 10.0
_GRANTED, _WRITTEN, _NOISE, _LINE = "#2a7f62", "#8fc7b0", "#999999", "#333333"


def draw(results: Results, path: Path) -> bool:
    """A PNG of well under 150 kB, if the run is one of these."""
    if not results.labels(own.TAKE_OVER) or not own.ratios(results, own.OTHERS, own.CONTROL):
        return False
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
    _take_overs(results, left)
    _others(results, right)
    about, machine = results.about, results.about["machine"]
    figure.suptitle("own: taking over, and everybody else", fontsize=10)
    figure.text(
        0.5,
        0.9,
        f"{about['date']} · {machine['cores']} cores {machine['cpu']} · fencepost serve --sync os · {about['run']}",
        ha="center",
        fontsize=7,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _take_overs(results: Results, axes: Axes) -> None:
    """Bars from the claim on: granted, and then the first write accepted."""
    rows = list(reversed(results.labels(own.TAKE_OVER)))
    for place, labels in enumerate(rows):
        [granted], [accepted] = (
            [series.median for series in results if (series.section, series.labels) == (section, labels)]
            for section in (own.GRANTED, own.TAKE_OVER)
        )
        axes.barh(place, accepted, color=_WRITTEN, height=0.62)
        axes.barh(place, min(granted, accepted), color=_GRANTED, height=0.62)
        axes.text(accepted + 0.15, place, f"{accepted:.1f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{owner}, {label}" for _, owner, label in rows], fontsize=8)
    axes.axvline(_GOAL_MS, color=_LINE, linewidth=1, linestyle="--")
    axes.set_xlim(0, max(_GOAL_MS * 1.15, axes.get_xlim()[1] * 1.1))
    axes.set_xlabel("ms from the claim: granted (dark), first write accepted (light); line: goal for p99", fontsize=8)
    _bare(axes)


def _others(results: Results, axes: Axes) -> None:
    """A dot per pair; the control shows how far dots fly for no reason at all."""
    rows = [
        (name, target, own.ratios(results, section, target))
        for section, name in ((own.OTHERS_CPU, "server CPU"), (own.OTHERS, "records/s"))
        for target in (own.CONTROL, own.WHILE_HELD)
    ]
    chance = random.Random(7)  # where the dots lie across the line means nothing
    for place, (_, target, values) in enumerate(rows):
        colour = _NOISE if target == own.CONTROL else _GRANTED
        axes.plot(values, [place + chance.uniform(-0.2, 0.2) for _ in values], "o", color=colour, markersize=3)
        low, middle, high = own.spread(values)
        axes.plot((low, high), (place, place), color=_LINE, linewidth=2)
        axes.plot((middle, middle), (place - 0.3, place + 0.3), color=_LINE, linewidth=2)
        axes.text(1.01, place, f"{middle:.3f}", va="center", fontsize=8, transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(rows)), [f"{name}: {target}" for name, target, _ in rows], fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel(f"beside {own.WITHOUT!r}, pair by pair; bar: median and quartiles", fontsize=8)
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)

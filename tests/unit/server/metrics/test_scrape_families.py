"""The text of families is what prometheus_client would write, and what its parser reads."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from fencepost.server.counters import LATENCY_BOUNDS, Histogram
from fencepost.server.metrics.scrape import Family, by_partition, escaped, places

pytestmark = pytest.mark.unit

NAMES = ["plain", 'quoted "\\" and\nbroken', "ünï", ""]


def written_by_the_library(metric: Metric) -> str:
    class Collector:
        def collect(self) -> list[Metric]:
            return [metric]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()


def read(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def test_gauges_and_counters_are_those_of_the_library() -> None:
    rows = [((name, str(number)), number * 1.5) for number, name in enumerate(NAMES)]
    known = GaugeMetricFamily("some_gauge", "Text.", labels=("a", "b"))
    total = CounterMetricFamily("some_counter", "Text.", labels=("a", "b"))
    for labels, value in rows:
        known.add_metric(labels, value)
        total.add_metric(labels, value)
    assert read(Family("some_gauge", "Text.", ("a", "b"), rows).text()) == read(written_by_the_library(known))
    assert read(Family("some_counter_total", "Text.", ("a", "b"), rows).text()) == read(written_by_the_library(total))


def test_a_family_without_labels_has_one_line() -> None:
    assert Family.one("lonely", "Text.", 7).text() == "# HELP lonely Text.\n# TYPE lonely gauge\nlonely 7\n"


@pytest.mark.parametrize("labels", [("api",), ()], ids=["with labels", "without"])
def test_histograms_are_those_of_the_library(labels: tuple[str, ...]) -> None:
    durations = Histogram()
    for seconds in (0.0001, 0.003, 0.003, 0.2, 60.0):
        durations.add(seconds)
    found = durations.read()
    values = tuple("Fetch" for _ in labels)
    family = HistogramMetricFamily("some_seconds", "Text.", labels=labels)
    buckets, so_far = [], 0
    for bound, count in zip([*(format(each, "g") for each in LATENCY_BOUNDS), "+Inf"], found.counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    family.add_metric(values, buckets, found.total)
    text = Family("some_seconds", "Text.", labels, [(values, found)]).text()
    assert read(text) == read(written_by_the_library(family))


def test_a_partition_without_a_value_has_no_line() -> None:
    name = escaped('the "first"')
    labels = f'consumergroup="{name}",topic="a"'
    text = by_partition("lag", "Offsets.", [(places(labels, [0, 7]), [5, None]), (places('topic="b"', [3]), [0])])
    assert text.splitlines() == [
        "# HELP lag Offsets.",
        "# TYPE lag gauge",
        r'lag{consumergroup="the \"first\"",topic="a",partition="0"} 5',
        'lag{topic="b",partition="3"} 0',
    ]

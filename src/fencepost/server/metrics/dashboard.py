"""A Grafana dashboard of the server's metrics, made from a table of panels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_THIS: Final = 'job="$job",instance=~"$instance"'
"""The server that the dashboard shows; Prometheus adds these labels."""
_COLUMNS: Final = 24
_WIDTH: Final = 8
_HEIGHT: Final = 8


class Panel(NamedTuple):
    title: str
    unit: str
    """Grafana's name of a unit."""
    queries: tuple[tuple[str, str], ...]
    """Queries with the names of their lines. `@` stands for the labels of the chosen server."""
    doc: str = ""


def _rate(name: str, by: str = "") -> str:
    rate = f"rate({name}{{@}}[$__rate_interval])"
    return f"sum by ({by}) ({rate})" if by else rate


def _quantile(which: float, histogram: str, by: str) -> str:
    return f"histogram_quantile({which}, {_rate(histogram + '_bucket', by)})"


def _one(title: str, unit: str, query: str, legend: str, doc: str = "") -> Panel:
    return Panel(title, unit, ((query, legend),), doc)


_WRITTEN: Final = "kafka_server_brokertopicmetrics"
_REQUESTS: Final = "fencepost_request_duration_seconds"
_SYNCS: Final = "fencepost_sync_round_duration_seconds"
_BOUNDED: Final = (
    ("request_memory_bytes", "memory of requests"),
    ("answer_memory_bytes", "memory of answers"),
    ("group_memory_bytes", "memory of groups"),
    ("segment_files_open", "open segment files"),
    ("producers", "remembered producers"),
)

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Overview",
        (
            _one("Up", "none", "up{@}", "{{instance}}", "1 while Prometheus can scrape the server."),
            Panel(
                "Failing background tasks", "none",
                (("sum by (chore) (fencepost_troubles{@})", "{{chore}}"), ("fencepost_disk_low{@}", "disk low")),
                "Anything above 0 needs a look: see the server's log.",
            ),
            _one("Version", "none", "fencepost_build_info{@}", "{{version}}"),
        ),
    ),
    (
        "Traffic",
        (
            _one("Records written", "wps", _rate(f"{_WRITTEN}_messagesin_total", "topic"), "{{topic}}"),
            _one("Bytes written", "Bps", _rate(f"{_WRITTEN}_bytesin_total", "topic"), "{{topic}}"),
            _one("Requests", "reqps", _rate(f"{_REQUESTS}_count", "api"), "{{api}}"),
            _one(
                "Request latency, 99th percentile", "s", _quantile(0.99, _REQUESTS, "api, le"), "{{api}}",
                "Fetch includes the wait for records.",
            ),
            Panel(
                "Sync rounds", "s",
                ((_quantile(0.99, _SYNCS, "le"), "99th percentile"), (_quantile(0.5, _SYNCS, "le"), "median")),
                "How long the disk takes to make records durable.",
            ),
            Panel(
                "Connections", "none",
                (
                    ("fencepost_connections{@}", "{{listener}}"),
                    (_rate("fencepost_connections_accepted_total"), "accepted per second"),
                ),
            ),
        ),
    ),
    (
        "Consumer groups",
        (
            _one(
                "Lag in offsets", "none", "sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{@})",
                "{{consumergroup}} {{topic}}",
            ),
            Panel(
                "Lag in records", "none",
                (
                    (
                        "sum by (consumergroup, topic) (fencepost_consumergroup_lag_records_sum{@})",
                        "{{consumergroup}} {{topic}}",
                    ),
                    ("fencepost_consumergroup_lags_uncounted{@}", "partitions not counted yet"),
                ),
                "Records that a reader of committed records has yet to get.",
            ),
            _one("Members", "none", "kafka_consumergroup_members{@}", "{{consumergroup}}"),
        ),
    ),
    (
        "Exactly once",
        (
            Panel(
                "Duplicates and fenced batches", "wps",
                (
                    (_rate("fencepost_duplicate_batches_total"), "duplicates recognised"),
                    (_rate("fencepost_fenced_batches_total"), "fenced by {{by}}"),
                    (_rate("fencepost_refused_batches_total"), "{{error}}"),
                ),
            ),
            Panel(
                "Owners", "none",
                (
                    ("fencepost_owned_resources{@}", "owned in {{owner_group}}"),
                    ("fencepost_waiting_claims{@}", "waiting claims"),
                    ("increase(fencepost_takeovers_total{@}[$__rate_interval])", "take-overs"),
                    ("increase(fencepost_severed_silent_owners_total{@}[$__rate_interval])", "silent owners severed"),
                ),
            ),
            Panel(
                "Open transactions", "none",
                (
                    ("fencepost_open_transactions{@}", "open"),
                    ("sum(fencepost_partition_undecided_offsets{@})", "undecided offsets"),
                ),
            ),
            _one("Oldest transaction", "s", "fencepost_oldest_transaction_seconds{@}", "age"),
            Panel(
                "Producers", "none",
                (("fencepost_producers{@}", "remembered"), ("fencepost_transactional_ids{@}", "transactional ids")),
            ),
            _one(
                "Spark sinks: time since the last micro-batch", "s",
                "time() - fencepost_sink_progress_timestamp_seconds{@}", "{{sink}}",
            ),
            _one("Spark sinks: last micro-batch", "none", "fencepost_sink_batch{@}", "{{sink}}"),
        ),
    ),
    (
        "Resources",
        (
            _one("CPU", "percentunit", _rate("process_cpu_seconds_total"), "cores"),
            _one("Memory", "bytes", "process_resident_memory_bytes{@}", "resident"),
            Panel(
                "Use of bounds", "percentunit",
                tuple((f"fencepost_{name}{{@}} / fencepost_{name}_limit{{@}}", title) for name, title in _BOUNDED),
            ),
            _one("Topics on disk", "bytes", "topk(20, fencepost_topic_bytes{@})", "{{topic}}"),
            _one("Metadata commits", "ops", _rate("fencepost_store_commits_total"), "commits"),
            _one("Partitions in use", "none", "fencepost_partitions_open{@}", "partitions"),
        ),
    ),
)  # fmt: skip


def make_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        y += 1
        per_line = _COLUMNS // _WIDTH
        for number, panel in enumerate(row):
            x = number % per_line * _WIDTH
            panels.append(_panel(panel, x, y + number // per_line * _HEIGHT))
        y += -(-len(row) // per_line) * _HEIGHT
    return {
        "title": "fencepost",
        "uid": "fencepost",
        "tags": ["fencepost", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _panel(panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.doc,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.replace("@", _THIS), "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> Iterable[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    for name, query in (
        ("job", "label_values(fencepost_build_info, job)"),
        ("instance", 'label_values(fencepost_build_info{job="$job"}, instance)'),
    ):
        yield {
            "name": name,
            "type": "query",
            "label": name,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "includeAll": name == "instance",
            "multi": name == "instance",
        }

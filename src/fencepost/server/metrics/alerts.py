"""Alerting rules for Prometheus, and the part of its configuration that scrapes the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple


class Alert(NamedTuple):
    name: str
    query: str
    lasts: str
    """How long the query must be true."""
    severity: str
    summary: str
    action: str


ALERTS: Final = (
    Alert(
        "FencepostDown", 'up{job="fencepost"} == 0', "1m", "critical",
        "Prometheus cannot scrape {{ $labels.instance }}.",
        "Look at the server's process and log; /readyz says what is wrong if it still answers.",
    ),
    Alert(
        "FencepostDiskLow", "fencepost_disk_low == 1", "0m", "critical",
        "The disk of {{ $labels.instance }} is nearly full: it rejects new records.",
        "Delete records or topics, lower their retention, or enlarge the disk. Reads and deletions still work.",
    ),
    Alert(
        "FencepostChoreFails", "sum by (job, instance, chore) (fencepost_troubles) > 0", "5m", "warning",
        "{{ $labels.chore }} fails on {{ $labels.instance }}.",
        "The server's log names the topic and the reason.",
    ),
    Alert(
        "FencepostTransactionHangs", "fencepost_oldest_transaction_seconds > 900", "5m", "warning",
        "A transaction on {{ $labels.instance }} is open for {{ $value | humanizeDuration }}.",
        "It holds back readers of committed records. `fencepost transactions list --open` names it.",
    ),
    Alert(
        "FencepostLagGrows",
        "sum by (job, instance, consumergroup, topic) (fencepost_consumergroup_lag_records_sum) > 0 and "
        "sum by (job, instance, consumergroup, topic) (delta(fencepost_consumergroup_lag_records_sum[30m])) > 0 and "
        "sum by (job, instance, consumergroup, topic) (delta(kafka_consumergroup_current_offset_sum[30m])) == 0",
        "10m", "warning",
        "Group {{ $labels.consumergroup }} has not moved in {{ $labels.topic }} for 30 minutes, and records wait.",
        "`fencepost group describe` shows its members and where each partition stands.",
    ),
    Alert(
        "FencepostSinkStands",
        "time() - fencepost_sink_progress_timestamp_seconds > 3600", "5m", "info",
        "Sink {{ $labels.sink }} has committed no micro-batch for {{ $value | humanizeDuration }}.",
        "A finished query needs no attention; `fencepost sink list` says which process ran it.",
    ),
    Alert(
        "FencepostTakeoversRepeat", "increase(fencepost_takeovers_total[10m]) > 10", "0m", "warning",
        "Owners on {{ $labels.instance }} replace each other again and again.",
        "Two programs may claim the same resource without `after=`; `fencepost owners` lists them.",
    ),
    Alert(
        "FencepostBatchesRefused", "sum by (job, instance, error) (rate(fencepost_refused_batches_total[5m])) > 0",
        "10m", "warning",
        "Producers on {{ $labels.instance }} are refused with {{ $labels.error }}.",
        "docs/troubleshooting.md explains the error.",
    ),
    Alert(
        "FencepostSyncSlow",
        "histogram_quantile(0.99, sum by (job, instance, le) "
        "(rate(fencepost_sync_round_duration_seconds_bucket[5m]))) > 0.5",
        "10m", "warning",
        "Syncs of {{ $labels.instance }} take {{ $value | humanizeDuration }} (99th percentile).",
        "The disk is slow or shared; producers with acks wait for it.",
    ),
    Alert(
        "FencepostProducersNearLimit", "fencepost_producers / fencepost_producers_limit > 0.9", "10m", "warning",
        "{{ $labels.instance }} remembers {{ $value | humanizePercentage }} of the producers that it may.",
        "New producers are refused at the limit: raise max_producers, or lower producer_expiry_ms.",
    ),
    Alert(
        "FencepostGroupMemoryNearLimit", "fencepost_group_memory_bytes / fencepost_group_memory_bytes_limit > 0.9",
        "10m", "warning",
        "The groups of {{ $labels.instance }} use {{ $value | humanizePercentage }} of their memory.",
        "Raise group_memory, or delete groups that nobody uses.",
    ),
)  # fmt: skip


def alert_rules() -> str:
    """Return a rules file for Prometheus."""
    lines = ["groups:", "  - name: fencepost", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_text(alert.query)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_text(alert.summary)}",
            f"          description: {_text(alert.action)}",
        ]
    return "\n".join(lines)


def prometheus_config(targets: Sequence[str], *, https: bool, user: str | None) -> str:
    """Return the configuration with which Prometheus scrapes these servers and loads the alerts."""
    lines = [
        "global:",
        "  scrape_interval: 15s",
        "rule_files:",
        "  - fencepost-alerts.yml  # fencepost generate alerts > fencepost-alerts.yml",
        "scrape_configs:",
        "  - job_name: fencepost",
    ]
    if https:
        lines += ["    scheme: https", "    # tls_config: {ca_file: ca.pem}"]
    if user is not None:
        lines += [
            "    basic_auth:",
            f"      username: {_text(user)}",
            "      password_file: fencepost-password  # a user who may DESCRIBE the cluster",
        ]
    lines += ["    static_configs:", f"      - targets: [{', '.join(_text(target) for target in targets)}]"]
    return "\n".join(lines)


def _text(value: str) -> str:
    """Return a YAML scalar in double quotes, whose escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)

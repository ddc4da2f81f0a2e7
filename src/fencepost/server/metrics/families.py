"""The server's state as Prometheus metrics.

Three kinds of names: those of kafka_exporter (`kafka_topic_…`, `kafka_consumergroup_…`) and those that the JMX exporter
gives the broker's counters (`kafka_server_…`), so that existing dashboards work; and `fencepost_…` for what only this
server knows. docs/metrics.md lists them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from fencepost._version import __version__
from fencepost.server.counters import LATENCY_BOUNDS, Distribution
from fencepost.server.metrics.state import GroupRow, PartitionState, ServerState

Labels: TypeAlias = tuple[str, ...]

_BOUND_NAMES: Final = (*(format(bound, "g") for bound in LATENCY_BOUNDS), "+Inf")
_LONG_NAME: Final = 256
_BY_PARTITION: Final = ("topic", "partition")
_BY_GROUP_PARTITION: Final = ("consumergroup", "topic", "partition")


def _gauge(name: str, doc: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> Metric:
    family = GaugeMetricFamily(name, doc, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, doc: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> Metric:
    family = CounterMetricFamily(name, doc, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(name: str, doc: str, labels: Labels, rows: Iterable[tuple[Labels, Distribution]]) -> Metric:
    family = HistogramMetricFamily(name, doc, labels=labels)
    for values, found in rows:
        buckets, so_far = [], 0
        for bound, count in zip(_BOUND_NAMES, found.counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric(values, buckets, found.total)
    return family


def _one(value: float) -> list[tuple[Labels, float]]:
    return [((), value)]


class _StateCollector:
    """One scrape. `prometheus_client` calls `collect`."""

    def __init__(self, state: ServerState, max_series: int) -> None:
        self._state = state
        self._series_left = max_series

    def _fits(self, series: int) -> bool:
        """Tell if so many series by partition may be added, and count them."""
        if series > self._series_left:
            return False
        self._series_left -= series
        return True

    def collect(self) -> Iterator[Metric]:
        yield from self._topics()
        yield from self._groups()
        yield from self._traffic()
        yield from self._owners()
        yield from self._transactions()
        yield from self._resources()

    def _topics(self) -> Iterator[Metric]:
        state = self._state
        yield _gauge("kafka_brokers", "Number of brokers.", (), _one(1))
        by_topic: list[tuple[Labels, float]] = [((topic.name,), topic.partitions) for topic in state.topics]
        yield _gauge("kafka_topic_partitions", "Partitions of the topic.", ("topic",), by_topic)
        rows = state.partitions
        left_out = 0
        if self._fits(6 * len(rows)):
            yield from _partitions(rows)
        else:
            left_out = len(rows)
        yield _gauge(
            "fencepost_metrics_partitions_left_out",
            "Partitions without series of their own, because there are more than http.max_series allows.",
            (),
            _one(left_out),
        )
        yield _gauge(
            "fencepost_partitions_open",
            "Partitions in use since the server started. Offsets are known only of these.",
            (),
            _one(len(rows)),
        )

    def _groups(self) -> Iterator[Metric]:
        groups = self._state.groups
        members: list[tuple[Labels, float]] = [((group.name,), group.members) for group in groups]
        yield _gauge("kafka_consumergroup_members", "Members of the group.", ("consumergroup",), members)
        offsets: dict[Labels, int] = defaultdict(int)
        lags: dict[Labels, int] = defaultdict(int)
        for group in groups:
            for (topic, _), committed, lag in group.offsets:
                offsets[group.name, topic] += committed
                lags[group.name, topic] += lag or 0
        sums = ("consumergroup", "topic")
        yield _gauge(
            "kafka_consumergroup_current_offset_sum", "Sum of the committed offsets.", sums, list(offsets.items())
        )
        yield _gauge("kafka_consumergroup_lag_sum", "Sum of the lags.", sums, list(lags.items()))
        # A long name counts more, because every series repeats it.
        if self._fits(2 * sum(len(group.offsets) * (1 + len(group.name) // _LONG_NAME) for group in groups)):
            yield from _group_partitions(groups)

    def _traffic(self) -> Iterator[Metric]:
        state = self._state
        records: dict[str, int] = defaultdict(int)
        sizes: dict[str, int] = defaultdict(int)
        for row in state.partitions:
            records[row.topic] += row.appended_records
            sizes[row.topic] += row.appended_bytes
        yield _counter("kafka_server_brokertopicmetrics_messagesin", "Records written.", ("topic",), _by_name(records))
        yield _counter("kafka_server_brokertopicmetrics_bytesin", "Bytes written.", ("topic",), _by_name(sizes))
        yield _histogram(
            "fencepost_request_duration_seconds",
            "Time from a whole request to its answer; of requests that wait for records, with the wait.",
            ("api",),
            [((api,), found) for api, found in state.requests.items()],
        )
        yield _histogram(
            "fencepost_sync_round_duration_seconds", "Time of a round of syncs (sync = always).", (),
            [((), state.sync_rounds)],
        )  # fmt: skip
        yield _counter(
            "fencepost_duplicate_batches", "Batches that were in the log already.", (), _one(state.duplicates)
        )
        yield _counter(
            "fencepost_fenced_batches", "Batches of writers that were replaced.", ("by",),
            [(("epoch",), state.fenced_by_epoch), (("owner",), state.fenced_by_owner)],
        )  # fmt: skip
        yield _counter(
            "fencepost_refused_batches", "Batches that were not written.", ("error",), _by_name(state.refused)
        )
        yield _gauge(
            "fencepost_connections", "Open connections of the listener.", ("listener",), _by_name(state.connections)
        )
        yield _counter(
            "fencepost_connections_accepted", "Connections that were accepted.", (), _one(state.connections_accepted)
        )

    def _owners(self) -> Iterator[Metric]:
        state = self._state
        yield _gauge(
            "fencepost_owned_resources", "Resources that have an owner.", ("owner_group",), _by_name(state.owned)
        )
        yield _gauge(
            "fencepost_known_resources", "Resources whose tokens are remembered.", (), _one(state.known_resources)
        )
        yield _gauge("fencepost_waiting_claims", "Claims that wait for an owner.", (), _one(state.waiting_claims))
        yield _counter("fencepost_takeovers", "Owners that were replaced.", (), _one(state.takeovers))
        yield _counter(
            "fencepost_severed_silent_owners", "Owners that were silent for too long.", (), _one(state.severed_silent)
        )

    def _transactions(self) -> Iterator[Metric]:
        state = self._state
        yield _gauge(
            "fencepost_transactional_ids", "Transactional ids that are known.", (), _one(state.transactional_ids)
        )
        yield _gauge("fencepost_open_transactions", "Transactions that are open.", (), _one(len(state.transactions)))
        started = [each.started_ms for each in state.transactions if each.started_ms >= 0]
        oldest = max(state.taken_ms - min(started), 0) / 1000 if started else 0
        yield _gauge("fencepost_oldest_transaction_seconds", "Age of the oldest open transaction.", (), _one(oldest))

    def _resources(self) -> Iterator[Metric]:
        state = self._state
        for name, doc, (used, bound) in (
            ("request_memory_bytes", "Memory of requests", state.request_memory),
            ("answer_memory_bytes", "Memory of unread answers", state.answer_memory),
            ("group_memory_bytes", "Memory of groups", state.group_memory),
            ("segment_files_open", "Open segment files", state.open_files),
        ):
            yield _gauge(f"fencepost_{name}", f"{doc}.", (), _one(used))
            yield _gauge(f"fencepost_{name}_limit", f"{doc}: the bound.", (), _one(bound))
        yield _counter("fencepost_store_commits", "Commits of the metadata store.", (), _one(state.store_commits))
        yield _gauge(
            "fencepost_disk_low", "1 while new records are rejected for lack of space.", (), _one(state.is_low_on_space)
        )
        troubles: dict[str, int] = defaultdict(int)
        for trouble in state.troubles:
            troubles[trouble.chore.value] += 1
        yield _gauge("fencepost_troubles", "Background tasks that fail.", ("chore",), _by_name(troubles))
        yield _gauge("fencepost_build_info", "The running version.", ("version",), [((__version__,), 1)])


def _by_name(values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [((name,), value) for name, value in values.items()]


def _partitions(rows: list[PartitionState]) -> Iterator[Metric]:
    names = [(row.topic, str(row.number)) for row in rows]

    def each(values: Iterable[float]) -> list[tuple[Labels, float]]:
        return list(zip(names, values, strict=True))

    yield _gauge(
        "kafka_topic_partition_current_offset", "End of the partition.", _BY_PARTITION, each(row.end for row in rows)
    )
    yield _gauge(
        "kafka_topic_partition_oldest_offset", "Start of the partition.", _BY_PARTITION, each(row.start for row in rows)
    )
    yield _gauge(
        "fencepost_partition_undecided_offsets",
        "Offsets behind the last stable offset, which readers of committed records do not see yet.",
        _BY_PARTITION,
        each(row.end - row.stable for row in rows),
    )
    yield _gauge("fencepost_partition_bytes", "Size on disk.", _BY_PARTITION, each(row.size for row in rows))
    yield _gauge(
        "fencepost_partition_producers", "Remembered producers.", _BY_PARTITION, each(row.producers for row in rows)
    )
    yield _gauge("kafka_topic_partition_leader", "Node id of the leader.", _BY_PARTITION, each(1 for _ in rows))


def _group_partitions(groups: list[GroupRow]) -> Iterator[Metric]:
    offsets: list[tuple[Labels, float]] = []
    lags: list[tuple[Labels, float]] = []
    for group in groups:
        for (topic, index), committed, lag in group.offsets:
            labels = (group.name, topic, str(index))
            offsets.append((labels, committed))
            if lag is not None:
                lags.append((labels, lag))
    yield _gauge("kafka_consumergroup_current_offset", "Committed offset.", _BY_GROUP_PARTITION, offsets)
    yield _gauge("kafka_consumergroup_lag", "Offsets from the committed one to the end.", _BY_GROUP_PARTITION, lags)


def render(state: ServerState, max_series: int) -> bytes:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_StateCollector(state, max_series))
    return generate_latest(registry)

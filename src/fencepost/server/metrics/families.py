"""The server's state as Prometheus metrics.

Three kinds of names: those of kafka_exporter (`kafka_topic_…`, `kafka_consumergroup_…`) and those that the JMX exporter
gives the broker's counters (`kafka_server_…`), so that existing dashboards work; and `fencepost_…` for what only this
server knows. docs/metrics.md lists them all.

prometheus_client reads what the operating system knows of the process. The text of everything else is made here
(`exposition.py`): a scrape may have a hundred thousand lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import sub
from typing import Any, Final, NamedTuple

from fencepost._version import __version__
from fencepost.server.metrics.exposition import Labels, PartitionFamilies, counter, escaped, gauge, histogram
from fencepost.server.metrics.state import ServerState
from fencepost.server.views.partitions import TopicSums

_LONG_NAME: Final = 256
OTHER: Final = "(other)"
"""The name under which topics, groups and sinks without series of their own are summed. No topic can have it."""


class Limits(NamedTuple):
    series: int
    """Series by partition."""
    names: int
    """Topics, groups and others with series of their own, of each kind."""


class _Names:
    """The first names of a kind keep theirs; the others share one."""

    def __init__(self, names: Iterable[str], most: int) -> None:
        self._own = dict.fromkeys(islice(names, most))

    def __call__(self, name: str) -> str:
        return name if name in self._own else OTHER

    def __contains__(self, name: str) -> bool:
        return name in self._own


def _one(value: float) -> list[tuple[Labels, float]]:
    return [((), value)]


class _StateCollector:
    """One scrape."""

    def __init__(self, state: ServerState, limits: Limits, by_partition: PartitionFamilies) -> None:
        self._state = state
        self._by_partition = by_partition
        self._most_names = limits.names
        self._series_left = limits.series
        self._topic_names = self._names(topic.name for topic in state.topics)
        self._group_names = self._names(group.name for group in state.groups)
        self._sums: dict[str, TopicSums] = defaultdict(TopicSums)
        for topic in state.topics:
            if topic.rows:
                self._sums[self._topic_names(topic.name)] += topic.sums

    def _names(self, names: Iterable[str]) -> _Names:
        return _Names(names, self._most_names)

    def _fits(self, series: int) -> bool:
        """Tell if so many series by partition may be added, and count them."""
        if series > self._series_left:
            return False
        self._series_left -= series
        return True

    def collect(self) -> Iterator[str | bytes]:
        yield from self._topics()
        yield from self._groups()
        yield from self._traffic()
        yield from self._owners()
        yield from self._transactions()
        yield from self._sinks()
        yield from self._resources()

    def _topics(self) -> Iterator[str | bytes]:
        state, names = self._state, self._topic_names
        yield gauge("kafka_brokers", "Number of brokers.", (), _one(1))
        by_topic = _summed((names(topic.name), topic.partitions) for topic in state.topics)
        yield gauge("kafka_topic_partitions", "Partitions of the topic.", ("topic",), by_topic)
        opened = sum(sums.opened for sums in self._sums.values())
        own = [topic for topic in state.topics if topic.rows and topic.name in names]
        rows = sum(len(topic.rows) for topic in own)
        if self._fits(6 * rows):
            columns = [(f'topic="{topic.name}"', _columns(topic.rows)) for topic in own]
            undecided = "Offsets behind the last stable offset, which readers of committed records do not see yet."
            for name, doc, values in (
                ("kafka_topic_partition_current_offset", "End of the partition.", lambda of: of.end),
                ("kafka_topic_partition_oldest_offset", "Start of the partition.", lambda of: of.start),
                ("fencepost_partition_undecided_offsets", undecided, lambda of: tuple(map(sub, of.end, of.stable))),
                ("fencepost_partition_bytes", "Size on disk.", lambda of: of.size),
                ("fencepost_partition_producers", "Remembered producers.", lambda of: of.producers),
                ("kafka_topic_partition_leader", "Node id of the leader.", lambda of: [state.node_id] * len(of.end)),
            ):
                yield self._by_partition.text(name, doc, [(by, of.partition, values(of)) for by, of in columns])
        else:
            rows = 0
        yield gauge(
            "fencepost_metrics_partitions_left_out",
            "Partitions without series of their own, because of http.max_series or http.max_names.",
            (),
            _one(opened - rows),
        )
        yield gauge(
            "fencepost_partitions_open",
            "Partitions in use since the server started. Offsets are known only of these.",
            (),
            _one(opened),
        )
        sizes = _by_name({name: sums.size for name, sums in self._sums.items()})
        yield gauge("fencepost_topic_bytes", "Size on disk of the topic's partitions in use.", ("topic",), sizes)
        producers = _one(sum(sums.producers for sums in self._sums.values()))
        yield gauge("fencepost_producers", "Remembered producers of all partitions in use.", (), producers)
        yield gauge("fencepost_producers_limit", "Remembered producers: the bound.", (), _one(state.most_producers))

    def _groups(self) -> Iterator[str | bytes]:
        groups, topics, names = self._state.groups, self._topic_names, self._group_names
        members = _summed((names(group.name), group.members) for group in groups)
        yield gauge("kafka_consumergroup_members", "Members of the group.", ("consumergroup",), members)
        offsets: dict[Labels, int] = defaultdict(int)
        lags: dict[Labels, int] = defaultdict(int)
        records: dict[Labels, int] = defaultdict(int)
        uncounted = 0
        columns = [(group, topic, _columns(rows)) for group in groups for topic, rows in group.topics.items()]
        for group, topic, of in columns:
            labels = names(group.name), topics(topic)
            offsets[labels] += sum(of.committed)
            for sums, column in (lags, of.lag), (records, of.records):
                known = [each for each in column if each is not None]
                if known:
                    sums[labels] += sum(known)
            uncounted += of.records.count(None) - of.lag.count(None)
        by = ("consumergroup", "topic")
        yield gauge("kafka_consumergroup_current_offset_sum", "Sum of the committed offsets.", by, offsets.items())
        yield gauge("kafka_consumergroup_lag_sum", "Sum of the lags.", by, lags.items())
        doc = "Sum of the lags in records that are counted."
        yield gauge("fencepost_consumergroup_lag_records_sum", doc, by, records.items())
        yield gauge(
            "fencepost_consumergroup_lags_uncounted",
            "Lags in records that are not counted yet: each scrape continues.",
            (),
            _one(uncounted),
        )
        # A long name counts more, because every series repeats it.
        own = [group for group in groups if group.name in names]
        if self._fits(3 * sum(group.offsets * (1 + len(group.name) // _LONG_NAME) for group in own)):
            shown = [
                (f'consumergroup="{escaped(group.name)}",topic="{topic}"', of)
                for group, topic, of in columns
                if group.name in names and topic in topics
            ]
            counted = "Records from the committed offset to the last stable one, without those of aborted transactions."
            for metric, doc, field in (
                ("kafka_consumergroup_current_offset", "Committed offset.", "committed"),
                ("kafka_consumergroup_lag", "Offsets from the committed one to the end.", "lag"),
                ("fencepost_consumergroup_lag_records", counted, "records"),
            ):
                values = [(labelled, of.partition, getattr(of, field)) for labelled, of in shown]
                yield self._by_partition.text(metric, doc, values)

    def _traffic(self) -> Iterator[str | bytes]:
        state = self._state
        records = {name: sums.appended_records for name, sums in self._sums.items()}
        sizes = {name: sums.appended_bytes for name, sums in self._sums.items()}
        yield counter("kafka_server_brokertopicmetrics_messagesin", "Records written.", ("topic",), _by_name(records))
        yield counter("kafka_server_brokertopicmetrics_bytesin", "Bytes written.", ("topic",), _by_name(sizes))
        yield histogram(
            "fencepost_request_duration_seconds",
            "Time from a whole request to its answer; of requests that wait for records, with the wait.",
            ("api",),
            [((api,), found) for api, found in state.requests.items()],
        )
        yield histogram(
            "fencepost_sync_round_duration_seconds", "Time of a round of syncs (sync = always).", (),
            [((), state.sync_rounds)],
        )  # fmt: skip
        yield counter(
            "fencepost_duplicate_batches", "Batches that were in the log already.", (), _one(state.duplicates)
        )
        yield counter(
            "fencepost_fenced_batches", "Batches of writers that were replaced.", ("by",),
            [(("epoch",), state.fenced_by_epoch), (("owner",), state.fenced_by_owner)],
        )  # fmt: skip
        yield counter(
            "fencepost_refused_batches", "Batches that were not written.", ("error",), _by_name(state.refused)
        )
        yield gauge(
            "fencepost_connections", "Open connections of the listener.", ("listener",), _by_name(state.connections)
        )
        yield counter(
            "fencepost_connections_accepted", "Connections that were accepted.", (), _one(state.connections_accepted)
        )

    def _owners(self) -> Iterator[str | bytes]:
        state = self._state
        names = self._names(state.owned)
        owned = _summed((names(group), count) for group, count in state.owned.items())
        yield gauge("fencepost_owned_resources", "Resources that have an owner.", ("owner_group",), owned)
        yield gauge(
            "fencepost_known_resources", "Resources whose tokens are remembered.", (), _one(state.known_resources)
        )
        yield gauge("fencepost_waiting_claims", "Claims that wait for an owner.", (), _one(state.waiting_claims))
        yield counter("fencepost_takeovers", "Owners that were replaced.", (), _one(state.takeovers))
        yield counter(
            "fencepost_severed_silent_owners", "Owners that were silent for too long.", (), _one(state.severed_silent)
        )

    def _transactions(self) -> Iterator[str | bytes]:
        state = self._state
        yield gauge(
            "fencepost_transactional_ids", "Transactional ids that are known.", (), _one(state.transactional_ids)
        )
        yield gauge("fencepost_open_transactions", "Transactions that are open.", (), _one(len(state.transactions)))
        started = [each.started_ms for each in state.transactions if each.started_ms >= 0]
        oldest = max(state.taken_ms - min(started), 0) / 1000 if started else 0
        yield gauge("fencepost_oldest_transaction_seconds", "Age of the oldest open transaction.", (), _one(oldest))

    def _sinks(self) -> Iterator[str | bytes]:
        sinks = dict(islice(self._state.sinks.items(), self._most_names))
        yield gauge(
            "fencepost_sink_batch", "Number of the last committed micro-batch; -1 if there is none yet.", ("sink",),
            [((name,), progress.batch) for name, progress in sinks.items()],
        )  # fmt: skip
        yield gauge(
            "fencepost_sink_progress_timestamp_seconds", "Time of the last committed progress record.", ("sink",),
            [((name,), progress.time_ms / 1000) for name, progress in sinks.items()],
        )  # fmt: skip
        yield gauge(
            "fencepost_sink_incarnation", "How often a driver has taken over the sink.", ("sink",),
            [((name,), progress.incarnation) for name, progress in sinks.items()],
        )  # fmt: skip
        yield gauge(
            "fencepost_sink_info", "The query and the host of the last progress record.", ("sink", "query", "host"),
            [((name, progress.query, progress.host), 1) for name, progress in sinks.items()],
        )  # fmt: skip

    def _resources(self) -> Iterator[str | bytes]:
        state = self._state
        for name, doc, (used, bound) in (
            ("request_memory_bytes", "Memory of requests", state.request_memory),
            ("answer_memory_bytes", "Memory of unread answers", state.answer_memory),
            ("group_memory_bytes", "Memory of groups", state.group_memory),
            ("segment_files_open", "Open segment files", state.open_files),
        ):
            yield gauge(f"fencepost_{name}", f"{doc}.", (), _one(used))
            yield gauge(f"fencepost_{name}_limit", f"{doc}: the bound.", (), _one(bound))
        yield counter("fencepost_store_commits", "Commits of the metadata store.", (), _one(state.store_commits))
        yield gauge(
            "fencepost_disk_low",
            "1 while new records are rejected for lack of space.",
            (),
            _one(int(state.is_low_on_space)),
        )
        troubles: dict[str, int] = defaultdict(int)
        for trouble in state.troubles:
            troubles[trouble.chore.value] += 1
        yield gauge("fencepost_troubles", "Background tasks that fail.", ("chore",), _by_name(troubles))
        yield gauge("fencepost_build_info", "The running version.", ("version",), [((__version__,), 1)])


def _columns(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the rows of a list as one row of columns."""
    return type(rows[0])(*zip(*rows, strict=True))


def _by_name(values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [((name,), value) for name, value in values.items()]


def _summed(rows: Iterable[tuple[str, float]]) -> list[tuple[Labels, float]]:
    sums: dict[str, float] = defaultdict(int)
    for name, value in rows:
        sums[name] += value
    return _by_name(sums)


def render(state: ServerState, limits: Limits, by_partition: PartitionFamilies) -> bytes:
    """Return the text that Prometheus reads. `by_partition` has text of the last scrape."""
    from prometheus_client import CollectorRegistry, generate_latest  # only now: the first answer need not wait for it
    from prometheus_client.process_collector import ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    parts = _StateCollector(state, limits, by_partition).collect()
    own = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join([generate_latest(registry), *own])

"""A scrape: the server's state, read on the loop, as Prometheus metrics, written in a thread.

Three kinds of names: those of kafka_exporter (`kafka_topic_…`, `kafka_consumergroup_…`) and those that the JMX exporter
gives the broker's counters (`kafka_server_…`), so that existing dashboards work; and `fencepost_…` for what only this
server knows. docs/metrics.md lists them all.

It is a skin over the snapshot that everybody shares (`server/views`), which is read in short turns. What the disk knows
(records to count, progress of sinks, free space, certificates) the thread adds.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from _ssl import _test_decode_cert  # type: ignore[attr-defined]
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fencepost._version import __version__
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX
from fencepost.core.transactions import RESTING
from fencepost.server.counters import LATENCY_BOUNDS, Distribution
from fencepost.server.net.turns import paced
from fencepost.server.process.control import BACKED_UP
from fencepost.server.views.groups import GroupRows
from fencepost.server.views.topics import TopicRows, TopicSums

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.log.partition import PartitionLog
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener
    from fencepost.server.views.snapshot import Snapshot, Snapshots
    from fencepost.types import Offset

Labels: TypeAlias = tuple[str, ...]
"""Names of labels, or the values of a row."""
Value: TypeAlias = float | Distribution
_BOUND_NAMES: Final = (*(format(bound, "g") for bound in LATENCY_BOUNDS), "+Inf")

_LONG_NAME: Final = 256
OTHER: Final = "(other)"
"""The name under which topics, groups and sinks without series of their own are summed. No topic can have it."""


class Scrapes:
    """One scrape at a time; who asks meanwhile gets the same text."""

    def __init__(self, broker: Broker, listener: Listener, snapshots: Snapshots) -> None:
        self._broker = broker
        self._listener = listener
        self._snapshots = snapshots
        self._under_way: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(self._scrape())
            self._under_way.add_done_callback(self._done)
        return await asyncio.shield(self._under_way)

    def _done(self, scraping: asyncio.Task[bytes]) -> None:
        self._under_way = None
        if not scraping.cancelled():
            scraping.exception()  # those who asked have it, or have hung up

    async def _scrape(self) -> bytes:
        broker = self._broker
        snapshot = await self._snapshots.now()
        sinks: dict[str, tuple[PartitionLog, Offset]] = {}
        async for topic in paced(list(broker.topics)):
            partition = topic.partition(0) if topic.name.startswith(PROGRESS_TOPIC_PREFIX) else None
            if partition is not None and partition.log is not None:
                sinks[topic.name] = partition.log, partition.log.last_stable_offset
        owned = Counter([group async for group, _, _ in paced(broker.owners.table)])
        started = [each.started_ms async for each in paced(list(broker.transactions)) if each.state not in RESTING]
        others = [*_numbers(broker, self._listener, owned), *_transactions(broker, started)]
        certificates = {port.config.name: port.config.certificate for port in self._listener.ports.values()}
        work = partial(self._text, snapshot, sinks, others, certificates)
        return await asyncio.get_running_loop().run_in_executor(broker.threads, work)

    # -- in a thread --------------------------------------------------------------------------------------------

    def _text(
        self,
        snapshot: Snapshot,
        sinks: dict[str, tuple[PartitionLog, Offset]],
        others: list[Family],
        certificates: dict[str, Path | None],
    ) -> bytes:
        groups = self._with_records(list(snapshot.groups.values()))
        config, topics = self._broker.config, list(snapshot.topics.values())
        parts = _ByName(topics, groups, config.http_max_series, config.http_max_names, config.node_id)
        others += self._sinks(sinks, config.http_max_names)
        others += _on_disk(self._broker, certificates)
        texts = [*parts.topics(), *parts.groups(), *(family.text() for family in others)]
        return of_process() + "".join(texts).encode()

    def _with_records(self, groups: list[GroupRows]) -> list[GroupRows]:
        """Return the groups with their lags in records, as far as they are counted. The snapshot stays as it is."""
        spans = [
            ((group.name, topic, row.partition), row.span)
            for group in groups
            for topic, rows in group.topics.items()
            for row in rows
            if row.span is not None
        ]
        counted = self._snapshots.record_lags.count(spans)
        if not counted:
            return groups
        return [
            group._replace(
                topics={
                    topic: [
                        row
                        if row.span is None
                        else row._replace(records=counted.get((group.name, topic, row.partition)))
                        for row in rows
                    ]
                    for topic, rows in group.topics.items()
                }
            )
            for group in groups
        ]

    def _sinks(self, logs: dict[str, tuple[PartitionLog, Offset]], most: int) -> Iterator[Family]:
        known = ((topic, self._snapshots.sinks.progress(topic, *log)) for topic, log in logs.items())
        sinks = {topic.removeprefix(PROGRESS_TOPIC_PREFIX): each for topic, each in known if each is not None}
        sinks = dict(islice(sinks.items(), most))
        batches = {sink: of.batch for sink, of in sinks.items()}
        doc = "Number of the last committed micro-batch; -1 if there is none yet."
        yield Family.by("sink", "fencepost_sink_batch", doc, batches)
        times = {sink: of.time_ms / 1000 for sink, of in sinks.items()}
        doc = "Time of the last committed progress record."
        yield Family.by("sink", "fencepost_sink_progress_timestamp_seconds", doc, times)
        incarnations = {sink: of.incarnation for sink, of in sinks.items()}
        doc = "How often a driver has taken over the sink."
        yield Family.by("sink", "fencepost_sink_incarnation", doc, incarnations)
        rows = [((sink, of.query, of.host), 1) for sink, of in sinks.items()]
        doc = "The query and the host of the last progress record."
        yield Family("fencepost_sink_info", doc, ("sink", "query", "host"), rows)


def of_process(proc: str = "/proc") -> bytes:
    """Return the metrics of this process, as the library reads them. For the time of its start the library looks into
    /proc/stat, which systemd hides (ProcSubset=pid): without it, it has no metrics at all."""
    from prometheus_client import CollectorRegistry, generate_latest  # only now: the first answer need not wait
    from prometheus_client.process_collector import ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    collector = ProcessCollector(proc=proc, registry=registry)
    collector._btime = collector._btime or _BOOTED
    return generate_latest(registry)


_BOOTED: Final = int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)) if hasattr(time, "CLOCK_BOOTTIME") else 0
"""Read once: a time of the start that moves by a second would look like a restart."""


def _on_disk(broker: Broker, certificates: dict[str, Path | None]) -> Iterator[Family]:
    with suppress(OSError):
        free = shutil.disk_usage(broker.directory.path).free
        yield Family.one("fencepost_disk_free_bytes", "Free space of the data directory's file system.", free)
    ends = {}
    for name, path in certificates.items():
        if path is not None:
            with suppress(OSError, ssl.SSLError, KeyError):
                ends[name] = ssl.cert_time_to_seconds(str(_test_decode_cert(str(path))["notAfter"]))
    backups: list[tuple[Labels, float]] = []
    with suppress(OSError):
        backups.append(((), (broker.directory.path / BACKED_UP).stat().st_mtime))
    doc = "When the last backup of the running server was whole."
    yield Family("fencepost_last_backup_timestamp_seconds", doc, (), backups)
    doc = "When the certificate of the listener expires."
    yield Family.by("listener", "fencepost_certificate_expiry_timestamp_seconds", doc, ends)


# -- on the loop ------------------------------------------------------------------------------------------------


def _transactions(broker: Broker, started: list[int]) -> Iterator[Family]:
    one, known = Family.one, [each for each in started if each >= 0]
    yield one("fencepost_transactional_ids", "Transactional ids that are known.", len(broker.transactions))
    yield one("fencepost_open_transactions", "Transactions that are open.", len(started))
    oldest = max(broker.clock.now_ms() - min(known), 0) / 1000 if known else 0
    yield one("fencepost_oldest_transaction_seconds", "Age of the oldest open transaction.", oldest)


def _numbers(broker: Broker, listener: Listener, owned: Counter[str]) -> Iterator[Family]:
    """Yield what needs no view: counters, and the use of what is bounded."""
    one, by, counters, config = Family.one, Family.by, broker.counters, broker.config
    requests = {name: histogram.read() for name, histogram in counters.requests.items()}
    doc = "Time from a whole request to its answer; of requests that wait for records, with the wait."
    yield by("api", "fencepost_request_duration_seconds", doc, requests)
    doc = "Time of a round of syncs (sync = always)."
    yield one("fencepost_sync_round_duration_seconds", doc, counters.sync_rounds.read())
    fenced = {"epoch": counters.fenced_by_epoch, "owner": counters.fenced_by_owner}
    yield by("by", "fencepost_fenced_batches_total", "Batches of writers that were replaced.", fenced)
    yield by("error", "fencepost_refused_batches_total", "Batches that were not written.", counters.refused)
    open_now = Counter(connection.session.listener.name for connection in listener.connections)
    connections = {name: open_now[name] for name in listener.ports}
    yield by("listener", "fencepost_connections", "Open connections of the listener.", connections)
    own = set(islice(owned, config.http_max_names))
    held = _summed((group if group in own else OTHER, count) for group, count in owned.items())
    yield by("owner_group", "fencepost_owned_resources", "Resources that have an owner.", held)
    troubles = Counter(trouble.chore.value for trouble in broker.health.troubles)
    yield by("chore", "fencepost_troubles", "Background tasks that fail.", troubles)
    yield by("version", "fencepost_build_info", "The running version.", {__version__: 1})
    for name, doc, value in (
        ("duplicate_batches_total", "Batches that were in the log already.", counters.duplicates),
        ("connections_accepted_total", "Connections that were accepted.", counters.connections_accepted),
        ("failed_logins_total", "Logins that failed, also over HTTP.", broker.audit.failed_logins),
        ("throttled_seconds_total", "Time for which quotas have muted connections.", broker.quotas.throttled_seconds),
        ("known_resources", "Resources whose tokens are remembered.", broker.owners.table.known),
        ("waiting_claims", "Claims that wait for an owner.", len(broker.owners.table.waiting())),
        ("takeovers_total", "Owners that were replaced.", counters.takeovers),
        ("severed_silent_owners_total", "Owners that were silent for too long.", counters.severed_silent),
        ("store_commits_total", "Commits of the metadata store.", broker.store.commits),
        ("disk_low", "1 while new records are rejected for lack of space.", int(broker.space.is_low)),
        ("producers_limit", "Remembered producers: the bound.", config.max_producers),
    ):
        yield one(f"fencepost_{name}", doc, value)
    for name, doc, used, bound in (
        ("request_memory_bytes", "Memory of requests", listener.memory.used, config.request_memory),
        ("answer_memory_bytes", "Memory of unread answers", broker.answers.used, config.answer_memory),
        ("group_memory_bytes", "Memory of groups", broker.groups.memory_used, config.group_memory),
        ("segment_files_open", "Open segment files", len(broker.handles), broker.handles.limit),
    ):
        yield one(f"fencepost_{name}", f"{doc}.", used)
        yield one(f"fencepost_{name}_limit", f"{doc}: the bound.", bound)


def _summed(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for name, value in rows:
        sums[name] += value
    return sums


# -- by topic and group -----------------------------------------------------------------------------------------


class _ByName:
    """The families by topic and group. The first names of a kind have series of their own, the others share one."""

    def __init__(
        self, topics: list[TopicRows], groups: list[GroupRows], series: int, most_names: int, node_id: int
    ) -> None:
        self._topics, self._groups, self._series_left, self._node_id = topics, groups, series, node_id
        self._own_topics = {topic.name for topic in topics[:most_names]}
        self._own_groups = {group.name for group in groups[:most_names]}

    def _fits(self, series: int) -> bool:
        """Tell if so many series by partition may be added, and count them."""
        fits = series <= self._series_left
        self._series_left -= series if fits else 0
        return fits

    def _topic(self, name: str) -> str:
        return name if name in self._own_topics else OTHER

    def _group(self, name: str) -> str:
        return name if name in self._own_groups else OTHER

    def topics(self) -> Iterator[str]:
        sums: dict[str, TopicSums] = defaultdict(TopicSums)
        for topic in self._topics:
            if topic.rows:
                sums[self._topic(topic.name)] += topic.sums
        total = sum(sums.values(), TopicSums())
        own = [topic for topic in self._topics if topic.rows and topic.name in self._own_topics]
        rows = sum(len(topic.rows) for topic in own)
        if self._fits(6 * rows):
            each = [(topic.name, _columns(topic.rows)) for topic in own]
            columns = [(places(f'topic="{topic}"', of.partition), of) for topic, of in each]
            undecided = "Offsets behind the last stable offset, which readers of committed records do not see yet."
            for name, doc, values in (
                ("kafka_topic_partition_current_offset", "End of the partition.", lambda of: of.end),
                ("kafka_topic_partition_oldest_offset", "Start of the partition.", lambda of: of.start),
                ("fencepost_partition_undecided_offsets", undecided, lambda of: tuple(map(sub, of.end, of.stable))),
                ("fencepost_partition_bytes", "Size on disk.", lambda of: of.size),
                ("fencepost_partition_producers", "Remembered producers.", lambda of: of.producers),
                ("kafka_topic_partition_leader", "Node id of the leader.", lambda of: [self._node_id] * len(of.end)),
            ):
                yield by_partition(name, doc, [(where, values(of)) for where, of in columns])
        else:
            rows = 0
        partitions = _summed((self._topic(topic.name), topic.partitions) for topic in self._topics)
        left_out = "Partitions without series of their own, because of http.max_series or http.max_names."
        opened = "Partitions in use since the server started. Offsets are known only of these."
        for name, doc, value in (
            ("kafka_brokers", "Number of brokers.", 1),
            ("fencepost_metrics_partitions_left_out", left_out, total.opened - rows),
            ("fencepost_partitions_open", opened, total.opened),
            ("fencepost_producers", "Remembered producers of all partitions in use.", total.producers),
        ):
            yield Family.one(name, doc, value).text()
        yield Family.by("topic", "kafka_topic_partitions", "Partitions of the topic.", partitions).text()
        counted = "kafka_server_brokertopicmetrics"
        for name, doc, field in (
            ("fencepost_topic_bytes", "Size on disk of the topic's partitions in use.", "size"),
            (f"{counted}_messagesin_total", "Records written.", "appended_records"),
            (f"{counted}_bytesin_total", "Bytes written.", "appended_bytes"),
            (f"{counted}_bytesout_total", "Bytes of records in answers to Fetch.", "fetched_bytes"),
        ):
            yield Family.by("topic", name, doc, {topic: getattr(each, field) for topic, each in sums.items()}).text()

    def groups(self) -> Iterator[str]:
        members = _summed((self._group(group.name), group.members) for group in self._groups)
        yield Family.by("consumergroup", "kafka_consumergroup_members", "Members of the group.", members).text()
        columns = [(group, topic, _columns(rows)) for group in self._groups for topic, rows in group.topics.items()]
        sums: dict[str, dict[Labels, int]] = {name: defaultdict(int) for name in ("committed", "lag", "records")}
        uncounted = 0
        for group, topic, of in columns:
            labels = self._group(group.name), self._topic(topic)
            for name, by_labels in sums.items():
                known = [each for each in getattr(of, name) if each is not None]
                if known:
                    by_labels[labels] += sum(known)
            uncounted += of.records.count(None) - of.lag.count(None)
        doc = "Lags in records that are not counted yet: each scrape continues."
        yield Family.one("fencepost_consumergroup_lags_uncounted", doc, uncounted).text()
        counted = "Records from the committed offset to the last stable one, without those of aborted transactions."
        families = (
            ("kafka_consumergroup_current_offset", "committed", "Sum of the committed offsets.", "Committed offset."),
            ("kafka_consumergroup_lag", "lag", "Sum of the lags.", "Offsets from the committed one to the end."),
            ("fencepost_consumergroup_lag_records", "records", "Sum of the lags in records that are counted.", counted),
        )
        for name, field, doc, _ in families:
            yield Family(f"{name}_sum", doc, ("consumergroup", "topic"), sums[field].items()).text()
        # A long name counts more, because every series repeats it.
        own = [group for group in self._groups if group.name in self._own_groups]
        if self._fits(3 * sum(group.lag.partitions * (1 + len(group.name) // _LONG_NAME) for group in own)):
            shown = [
                (places(f'consumergroup="{escaped(group.name)}",topic="{topic}"', of.partition), of)
                for group, topic, of in columns
                if group.name in self._own_groups and topic in self._own_topics
            ]
            for name, field, _, doc in families:
                yield by_partition(name, doc, [(where, getattr(of, field)) for where, of in shown])


def _columns(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the rows of a list as one row of columns."""
    return type(rows[0])(*zip(*rows, strict=True))


# -- Prometheus' text format -------------------------------------------------------------------------------------


class Family(NamedTuple):
    """A family of metrics. prometheus_client writes such too, and takes several microseconds for each of the hundreds
    of lines of a scrape."""

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

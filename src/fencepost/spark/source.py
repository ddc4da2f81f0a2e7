"""`spark.read.format("fencepost")` and `spark.readStream`: a Python data source, no jar (PIPE-1).

Columns and options are those of Spark's own Kafka source, so that users can switch by changing the format's name. The
latest offset is the last *stable* one: records of open transactions are not read.

With Spark 4.2 or newer the source supports admission control: rate limits, and `availableNow` with an end that is fixed
when the query starts. Spark 4.0 and 4.1 ask for the latest offset without saying where the query is; there the reader
remembers it, so that a micro-batch can be limited. What this cannot keep is refused.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
except ImportError as error:
    raise ImportError(
        "fencepost's source needs PySpark 4.0 or newer, for data sources in Python. The sink works with this version: "
        'keep format("kafka") as the source'
    ) from error

from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.admin_client import Admin
from fencepost.client.cluster.patience import patiently
from fencepost.client.cluster.routing import Routes
from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX
from fencepost.client.own.kafka_topic import TOPIC_PREFIX as OWNERS_PREFIX
from fencepost.client.read.ranges import DataLost, Range, fetch
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError
from fencepost.spark import columns, offsets
from fencepost.spark.options import Offsets, SourceOptions, parse_source
from fencepost.spark.workers import Shipped, is_connect, use_this_python
from fencepost.types import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1
    ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A stand-in: this Spark does not have the class."""
else:
    ADMISSION_CONTROL = True

logger = logging.getLogger(__name__)

NAME: Final = "fencepost"
_OUR_TOPICS: Final = (PROGRESS_TOPIC_PREFIX, STAGE_TOPIC_PREFIX, OWNERS_PREFIX)
T = TypeVar("T")


def register(spark: SparkSession) -> None:
    """Register `format("fencepost")` with the session. Over Spark Connect: raise ConfigError if the server lacks it."""
    use_this_python(spark)
    try:
        spark.dataSource.register(FencepostSource)
    except Exception as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 found `pyspark_fencepost`, and replaces nothing
            raise
    if is_connect(spark):
        _try_there(spark)


def _try_there(spark: SparkSession) -> None:
    """Let the Connect server import the source: registering alone sends only its name."""
    try:
        _ = spark.read.format(NAME).load().schema
    except Exception as error:
        if "No module named" not in str(error) and "ImportError" not in str(error):
            raise
        said = next(line.strip() for line in str(error).splitlines() if "No module named" in line or "ImportE" in line)
        raise ConfigError(
            f"the Spark Connect server cannot import fencepost: {said}. Install it in the Python of the server and of "
            "its executors (PYSPARK_PYTHON or spark.pyspark.python there): pip install 'fencepost[arrow]'"
        ) from error


class SourcePartition(InputPartition):  # type: ignore[misc]
    """The range that one task reads."""

    def __init__(self, wanted: Range, topic_id: str | None) -> None:
        super().__init__(str(wanted))
        self.wanted = wanted
        self.topic_id = topic_id


class FencepostSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.source_schema(headers=str(self.options.get("includeheaders", "false")).lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._parsed(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = self._parsed(schema, streaming=True)
        if ADMISSION_CONTROL:
            return StreamReader(options)
        if options.min_offsets is not None:
            raise ConfigError(
                "minOffsetsPerTrigger needs Spark 4.2 or newer: with this version trigger(availableNow=True) is one "
                "micro-batch, and could end without having read anything. Remove the option"
            )
        return RememberingStreamReader(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - as above
        from fencepost.spark.writer import stream_writer

        return stream_writer(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from fencepost.spark.writer import batch_writer

        return batch_writer(dict(self.options), schema, overwrite=overwrite)

    def _parsed(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        """Parse the options. The columns are all of the source's, or those of the user's `schema(…)`."""
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if columns.COLUMNS.get(field.name) != kind:
                known = ", ".join(f"{name} {kind}" for name, kind in columns.COLUMNS.items())
                raise ConfigError(f"schema: this source has no column {field.name} {kind}; its columns are {known}")
        options = parse_source(dict(self.options), streaming=streaming)
        return dataclasses.replace(options, columns=tuple(schema.names))


class SubscribedPartitions:
    """The subscribed partitions and their offsets, looked up on every call because topics come and grow."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def names(self, admin: Admin) -> list[str]:
        options = self._options
        if options.assigned is not None:
            return sorted(options.assigned)
        if options.pattern is not None:
            # Without fencepost's own topics, which are not internal to Apache Kafka: a stream that read the topic its
            # own sink writes to would never be idle.
            matching = (topic.name for topic in admin.topics() if options.pattern.search(topic.name))
            return sorted(name for name in matching if not name.startswith(_OUR_TOPICS))
        return sorted(options.topics)

    def ids(self, admin: Admin) -> dict[str, str]:
        """Return the topics' ids. Ask for them before their offsets: if a topic is recreated in between, the old id
        stands beside the new offsets, and the next look notices it."""
        return admin.topic_ids(None if self._options.pattern is not None else self.names(admin))

    def at(self, admin: Admin, end: int) -> dict[TopicPartition, int]:
        """Return the EARLIEST or LATEST offsets. LATEST is the last stable offset, unless uncommitted records are
        read."""
        options = self._options
        found: dict[TopicPartition, int] = {}
        for topic in self.names(admin):
            wanted = None if options.assigned is None else options.assigned[topic]
            if wanted is not None and not options.fail_on_data_loss:
                wanted = self._existing(admin, topic, wanted)
            try:
                known = admin.offsets(topic, end, partitions=wanted, read_committed=options.committed)
            except ServerError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not options.fail_on_data_loss:
                    continue
                raise
            found |= {TopicPartition(topic, partition): at.offset for partition, at in known.items()}
        return found

    def _existing(self, admin: Admin, topic: str, wanted: Sequence[int]) -> tuple[int, ...]:
        """Return those of the wanted partitions that exist."""
        try:
            there = {partition.partition for partition in admin.describe_topic(topic).partitions}
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            there = set()
        return tuple(partition for partition in wanted if partition in there)

    def resolved(self, admin: Admin, given: Offsets) -> dict[TopicPartition, int]:
        """Return the given offsets as numbers."""
        if given.end is not None:
            return self.at(admin, EARLIEST if given.end == EARLIEST else LATEST)
        latest = self.at(admin, LATEST)
        if given.timestamp is not None:
            return self._by_time(admin, dict.fromkeys(latest, given.timestamp), latest, given.strict)
        if given.timestamps is not None:
            _demand_all(given.timestamps, latest, "timestamps")
            return self._by_time(admin, given.timestamps, latest, given.strict)
        assert given.by_partition is not None
        _demand_all(given.by_partition, latest, "offsets")
        earliest = self.at(admin, EARLIEST) if EARLIEST in given.by_partition.values() else {}
        words = {EARLIEST: earliest, LATEST: latest}
        return {where: words[at][where] if at in words else at for where, at in given.by_partition.items()}

    def _by_time(
        self, admin: Admin, times: offsets.Position, latest: offsets.Position, strict: bool
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for where, moment in times.items():
            committed = self._options.committed
            places = admin.offsets(where.topic, moment, partitions=[where.partition], read_committed=committed)
            at: int = places[where.partition].offset
            if at < 0 and strict:
                raise ConfigError(
                    f"{where} has no record at or after {moment}; set startingOffsetsByTimestampStrategy=latest to "
                    "start at its end"
                )
            found[where] = at if at >= 0 else latest[where]
        return found


def _demand_all(given: offsets.Position, latest: offsets.Position, what: str) -> None:
    """Check that the JSON names every partition and no other one, as Spark requires: for those that are missing the
    start would be undefined."""
    for topic, absent in offsets.by_topic(offsets.without(latest, given)).items():
        raise ConfigError(f"the JSON of {what} must name all partitions of {topic}; {list(absent)} are missing")
    for topic, strange in offsets.by_topic(offsets.without(given, latest)).items():
        raise ConfigError(
            f"the JSON of {what} names {topic} {list(strange)}, which this query does not read; remove it"
        )


def read_range(options: SourceOptions, partition: SourcePartition) -> Iterator[pa.RecordBatch]:
    """Read a range; this runs in a task. It fails if the topic was recreated since the range was planned, or while it
    is read; where records may be lost, nothing is read then."""
    wanted, strict = partition.wanted, options.fail_on_data_loss
    with Routes(options.settings) as routes:
        admin = TopicAdmin(routes)

        def is_recreated() -> bool:
            ids = patiently(lambda: admin.topic_ids([wanted.topic]), f"checking {wanted}", patience=options.patience)
            now = ids.get(wanted.topic, partition.topic_id)
            return partition.topic_id is not None and now != partition.topic_id

        if not strict and is_recreated():
            return
        fetched = fetch(routes, wanted, committed=options.committed, fail_on_data_loss=strict)
        yield from columns.rows(wanted, fetched, options.columns, null_times=options.null_times)
        if strict and is_recreated():
            raise _recreated(wanted.topic)


def _recreated(topic: str) -> DataLost:
    return DataLost(
        f"{topic} was deleted and recreated: it has another topic id than the one whose offsets this query has. "
        "failOnDataLoss=false reads the new topic from its beginning"
    )


def _deleted(topic: str) -> DataLost:
    return DataLost(
        f"{topic} was deleted: records that this query had not read yet are lost. failOnDataLoss=false continues with "
        "the other topics"
    )


class BatchReader(Shipped, DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        topics = SubscribedPartitions(options)

        def planned() -> list[SourcePartition]:
            with Admin(options.settings) as admin:
                ids = topics.ids(admin)
                start = topics.resolved(admin, options.starting)
                stop = topics.resolved(admin, options.ending)
                offsets.check_order(start, stop)
                if not options.fail_on_data_loss:
                    start = offsets.clamped(start, topics.at(admin, EARLIEST), topics.at(admin, LATEST))
            return _planned(options, start, stop, ids)

        return patiently(planned, "planning a read", patience=options.patience)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SourcePartition):  # Spark passes one of its own if there is nothing to read
            yield from read_range(self._options, partition)


def _planned(
    options: SourceOptions, start: offsets.Position, stop: offsets.Position, ids: Mapping[str, str]
) -> list[SourcePartition]:
    found = offsets.ranges(start, stop, at_least=options.min_partitions, at_most=options.max_records)
    return [SourcePartition(wanted, ids.get(wanted.topic)) for wanted in found]


class _Stream(Shipped, DataSourceStreamReader):  # type: ignore[misc]
    """The base of both stream readers. It lives on the driver as long as the query; `read` runs on executors, in a copy
    that has only the options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics = SubscribedPartitions(options)
        self._admin: Admin | None = None
        self._initial: dict[str, Any] | None = None
        self._no_start: ConfigError | None = None
        """Why the options name no start: then `_initial` is empty."""
        self._goal: dict[str, Any] | None = None
        """availableNow: the end of the query."""
        self._waiting_since: float | None = None
        """minOffsetsPerTrigger: since when there are new offsets, but too few."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None}

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._options.settings)
        return self._admin

    def _patiently(self, ask: Callable[[], T], what: str) -> T:
        return patiently(ask, what, patience=self._options.patience)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Return where the stream starts: the same at each call, because Spark asks more than once.

        Spark also asks if the first micro-batch is repeated, whose end says where it began. By then the options may
        name no start, because the topic has more partitions or fewer records. That is an error where the start is used.
        """

        def found() -> dict[str, Any]:
            ids = self._topics.ids(self.admin)
            return offsets.to_json(self._topics.resolved(self.admin, self._options.starting), ids)

        if self._initial is None:
            try:
                self._initial = self._patiently(found, "looking where the stream starts")
            except ConfigError as error:
                self._initial, self._no_start = {}, error
        return self._initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        begin, stop = offsets.from_json(start), offsets.from_json(end)
        if start == self._initial:
            # Spark has not written the start down. If the query crashed in this micro-batch, `initialOffset` was asked
            # again and may be anywhere; the end says where the micro-batch began. The end of an earlier version does
            # not, and there the start is at least not behind it.
            begin = {**offsets.not_behind(begin, stop), **offsets.began(end)}
            if self._no_start is not None and offsets.without(stop, begin):
                raise self._no_start
        else:
            begin = {**offsets.began(end), **_same_topics(start, begin, offsets.ids(end))}
        now = self._ids()
        lost = {**offsets.recreated(start, now), **offsets.recreated(end, now)}
        if self._options.fail_on_data_loss and lost:
            raise _recreated(next(iter(lost)))
        stop = _same_topics(end, stop, now)
        earliest = self._earliest()
        begin = offsets.completed(begin, stop, earliest)
        if self._options.fail_on_data_loss:
            offsets.check_nothing_lost(begin, earliest, stop)
        else:
            begin = offsets.clamped(begin, earliest, stop)
            stop = {where: at for where, at in stop.items() if where in begin}
        return _planned(self._options, begin, stop, now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourcePartition)
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        group = self._options.commit_group
        if group is not None:
            for topic, partitions in offsets.by_topic(offsets.from_json(end)).items():
                try:
                    self.admin.commit_group_offsets(group, topic, partitions)
                except FencepostError as error:  # only tools that show lag need it: do not end the stream
                    logger.warning("could not commit the offsets of %s to group %s: %s", topic, group, error)

    def stop(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _end(
        self,
        start: dict[str, Any],
        begin: offsets.Position,
        stop: offsets.Position,
        ids: dict[str, str],
    ) -> dict[str, Any]:
        """Return the end of a micro-batch for the checkpoint, with the notes that `offsets` describes. If there is
        nothing new it is `start` itself, because Spark compares the two as text."""
        known = {} if start == self._initial else _same_topics(start, offsets.from_json(start), ids)
        began = offsets.without({where: begin[where] for where in stop if where in begin}, known)
        if stop == known and not began:
            return start
        return offsets.to_json(stop, {**offsets.ids(start), **ids}, began)

    def _ids(self) -> dict[str, str]:
        return self._patiently(lambda: self._topics.ids(self.admin), "looking for the topics' ids")

    def _latest(self) -> dict[TopicPartition, int]:
        return self._patiently(lambda: self._topics.at(self.admin, LATEST), "looking for the latest offsets")

    def _earliest(self) -> dict[TopicPartition, int]:
        return self._patiently(lambda: self._topics.at(self.admin, EARLIEST), "looking for the earliest offsets")

    def _bounds(
        self, start: dict[str, Any], stop: dict[TopicPartition, int], ids: dict[str, str]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return start and end of what can be read: `stop` never behind `begin`, `begin` with all its partitions.
        Partitions that `start` does not have, and recreated topics, begin with their first record."""
        strict = self._options.fail_on_data_loss
        if self._no_start is not None and start == self._initial:
            raise self._no_start
        if strict:
            for topic in offsets.recreated(start, ids):
                raise _recreated(topic)
            if self._options.pattern is not None:  # otherwise the server has said so by now
                there = {where.topic for where in stop}
                for topic in (topic for topic in start if topic not in ids and topic not in there):
                    raise _deleted(topic)
        begin = _same_topics(start, offsets.from_json(start), ids)
        for where, at in begin.items():
            end = stop.get(where)
            if end is None and strict:
                stop[where] = at  # its metadata may be missing for a moment: stay there
            elif end is not None and end < at:
                stop[where] = self._behind(where, at, end)
        new = offsets.without(stop, begin)
        if new:
            begin = offsets.completed(begin, stop, self._earliest())
            if strict:
                offsets.check_from_the_first({where: begin[where] for where in new})
        return begin, stop

    def _behind(self, where: TopicPartition, at: int, stable: int) -> int:
        """Return the end of a partition whose last stable offset is below the stream's position. An open transaction
        may hold it back; but if the log itself is shorter, the topic was recreated."""
        ends = self._patiently(
            lambda: self.admin.offsets(where.topic, LATEST, partitions=[where.partition]),
            f"looking for the end of {where.topic}",
        )
        (end,) = (found.offset for found in ends.values())
        if end >= at:
            return at
        if self._options.fail_on_data_loss:
            offsets.check_nothing_lost({where: at}, {where: 0}, {where: end})
        return stable


def _same_topics(stored: dict[str, Any], position: offsets.Position, ids: dict[str, str]) -> dict[TopicPartition, int]:
    """Return `position`, which is the one of `stored`, without topics that have another id in `ids`."""
    gone = offsets.recreated(stored, ids)
    return {where: at for where, at in position.items() if where.topic not in gone}


class RememberingStreamReader(_Stream):
    """The reader for Spark 4.0 and 4.1, which ask for the latest offset without the start.

    It lives as long as the query, and knows the start by the ranges that Spark lets it plan: each micro-batch begins
    where the last one ended. When a query goes on, Spark first lets it plan an empty range at the last end that it
    wrote down. A new query begins at `initialOffset`.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._position: dict[str, Any] | None = None
        """The end of the last planned range."""
        self._promised: dict[str, Any] | None = None
        """The end that Spark was told and has not planned yet."""

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._promised is not None:
            return self._promised
        start = self.initialOffset() if self._position is None else self._position
        ids = self._ids()
        begin, stop = self._bounds(start, self._latest(), ids)
        if self._options.max_offsets is None:
            return self._end(start, begin, stop, ids)
        stop = offsets.limited(begin, stop, self._options.max_offsets)
        end = self._end(start, begin, stop, ids)
        if offsets.count(begin, stop):  # Spark plans no batch without new offsets
            self._promised = end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._promised is not None and self._position is None and start != self._initial:
            raise FencepostError(
                f"maxOffsetsPerTrigger: the query is at {start}, and this Spark did not say so before it asked for the "
                "end of a micro-batch. Nothing was read. Remove the option, or use Spark 4.2 or newer"
            )
        planned = super().partitions(start, end)
        self._position, self._promised = end, None
        return planned


class StreamReader(_Stream, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader with admission control."""

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        ids = self._ids()
        self._goal = offsets.to_json(self._latest(), ids)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        ids = self._ids()
        goal = self._latest() if self._goal is None else _same_topics(self._goal, offsets.from_json(self._goal), ids)
        begin, stop = self._bounds(start, goal, ids)
        waits = self._goal is None and not isinstance(limit, ReadAllAvailable)
        if waits and self._too_little(begin, stop):
            stop = begin
        elif isinstance(limit, ReadMaxRows):
            stop = offsets.limited(begin, stop, limit.max_rows)
        return self._end(start, begin, stop, ids)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the latest offsets, for the lag in the query's progress."""
        return offsets.to_json(self._latest() if self._goal is None else offsets.from_json(self._goal))

    def _too_little(self, begin: offsets.Position, stop: offsets.Position) -> bool:
        """Return whether to wait for more offsets (minOffsetsPerTrigger), up to maxTriggerDelay."""
        least = self._options.min_offsets
        found = offsets.count(begin, stop)
        if least is None or found >= least or found == 0:
            self._waiting_since = None
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._options.max_delay:
            return True
        self._waiting_since = None
        return False

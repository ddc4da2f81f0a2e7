"""Exactly-once copy of a topic, partition to partition, without decoding (PIPE-3).

Each task copies immutable ranges of offsets, each of a different source partition: a copy needs no freeze, no shuffle.
Otherwise it follows the sink's protocol, with one transaction per round. The progress record holds the position and is
committed in the same transaction as the data. So a copy stores nothing outside the target cluster, and a killed copy
can resume on any machine.

Record batches are copied whole, with a new stamp (offset, pid, epoch, sequence, transactional bit, checksum). A batch
is decoded and encoded again only if the range starts or ends inside it, if it was compacted (its count is not its range
of offsets), if its attributes say LogAppendTime or a delete horizon, or if it is larger than the target accepts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from fencepost.client.admin.lasting import copied_configs, create_lasting_topic
from fencepost.client.admin_client import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import Advice, Content, Runner
from fencepost.client.micro_batch.targets import describe
from fencepost.client.read.ranges import DataLost, Range, fetch
from fencepost.client.read.resending import encoded_again, whole_batch
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.micro_batch.protocol import FrozenContent, SinkNameInUse
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError
from fencepost.spark import offsets
from fencepost.spark.publish import PublishedPartition, failed, raise_failed
from fencepost.spark.workers import known_cores, refuse_connect
from fencepost.types import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

OFFSETS_PER_ROUND: Final = 4_000_000
_FETCH_BYTES: Final = 2 << 20
"""Small enough to stay in the CPU's cache until it is sent on, and for the kernel to reuse its memory."""
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one transaction."""

    number: int
    records: int
    bytes: int
    whole: int
    """Record batches that were copied without decoding, of all `batches`."""
    batches: int
    lag: int
    """Offsets left to copy when the round ended."""
    seconds: float


class Copied(NamedTuple):
    """The copied part of a partition."""

    records: int = 0
    bytes: int = 0
    whole: int = 0
    batches: int = 0


class CopiedRange(NamedTuple):
    """A task's report of a range."""

    published: PublishedPartition
    copied: Copied = Copied()


@dataclass
class CopyPlan:
    """The ranges of one round, and what was copied of them, by partition."""

    ranges: list[Range]
    position: str
    copied: dict[int, Copied] = field(default_factory=dict)


class Copy:
    """A copy of one source topic to one target topic. `rounds` copies all records, with `follow` also new ones."""

    def __init__(
        self,
        spark: SparkSession,
        source: ClientSettings,
        topic: str,
        target: ClientSettings,
        target_topic: str,
        *,
        name: str | None = None,
        adopt: bool = False,
        offsets_per_round: int = OFFSETS_PER_ROUND,
        transaction_timeout: float = 300.0,
        attempts: int = 3,
        on_step: Callable[[str], object] | None = None,
    ) -> None:
        refuse_connect(spark)
        self.source, self.topic, self.target, self.target_topic = source, topic, target, target_topic
        self.offsets_per_round = offsets_per_round
        self._spark = spark
        self.admin = Admin(source)
        self._cluster = self.admin.cluster().cluster_id
        self.name = name or _name_of(f"copy.{self._cluster}.{topic}.{target_topic}")
        self._adopt = adopt
        self.runner = Runner(
            target,
            self.name,
            adopt=adopt,
            attempts=attempts,
            transaction_timeout=transaction_timeout,
            on_step=on_step,
        )
        self.position: dict[int, int] | None = None
        """The next offsets to copy; None until the first round."""
        self.max_bytes = 0
        self.compacted = False
        """Compaction may delete records in the middle of the source's log while it is copied."""

    def close(self) -> None:
        self.admin.close()
        self.runner.close()

    def prepare(self) -> None:
        """Create a missing target with the source's partitions and configs."""
        admin = self.runner.admin
        source = self.admin.describe_topic(self.topic)
        if (self._cluster, self.topic) == (admin.cluster().cluster_id, self.target_topic) and source.topic_id in (
            None,
            self._id_of_target(),  # clusters that were set up from one image may share their cluster id
        ):
            raise ConfigError("source and target are the same topic; name another target")
        partitions = len(source.partitions)
        known = self.admin.topic_configs(self.topic)
        self.compacted = any(entry.name == "cleanup.policy" and "compact" in (entry.value or "") for entry in known)
        create_lasting_topic(admin, self.target_topic, partitions, configs=copied_configs(known))
        self.max_bytes = describe(admin, self.target_topic).max_bytes
        if self.compacted and self._speculates():
            raise ConfigError(
                f"{self.topic} is compacted, and spark.speculation runs tasks twice: a second attempt cannot resume "
                "behind the first. Set spark.speculation=false"
            )

    def _speculates(self) -> bool:
        return (self._spark.sparkContext.getConf().get("spark.speculation") or "false").lower() == "true"

    def _id_of_target(self) -> UUID | None:
        try:
            return self.runner.admin.describe_topic(self.target_topic).topic_id
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None

    def _what(self) -> str:
        """Describe source and target, with the topics' ids: a position is void if a topic was recreated."""
        source, target = self.admin.describe_topic(self.topic), self.runner.admin.describe_topic(self.target_topic)
        return f"copy of {self.topic} ({source.topic_id}) of {self._cluster} to {self.target_topic} ({target.topic_id})"

    def latest(self) -> dict[int, int]:
        """Return the source's last stable offsets."""
        found = self.admin.offsets(self.topic, LATEST, read_committed=True)
        return {partition: at.offset for partition, at in found.items()}

    def lag(self, goal: Mapping[int, int] | None = None) -> int:
        position = self.position or {}
        goal = self.latest() if goal is None else goal
        return sum(max(0, at - position.get(partition, 0)) for partition, at in goal.items())

    def rounds(self, *, follow: bool = False, pause: float = 0.5) -> Iterator[Round]:
        """Copy up to the source's present end; with `follow`, never stop."""
        self.prepare()
        goal = None if follow else self.latest()
        while True:
            upto = goal if goal is not None else self.latest()
            self._check(self.position or {}, {}, upto)
            if self.position is not None and not self.lag(upto):
                if goal is not None:
                    return
                time.sleep(pause)
                continue
            yield self._round(upto)

    def _round(self, upto: Mapping[int, int]) -> Round:
        began = time.monotonic()
        work = _CopyRound(self, upto)
        query = self._what()  # in every round: topics may be recreated while a copy follows
        try:
            outcome = self.runner.carry_out(work, query, None)
        except SinkNameInUse as error:
            if error.found is None:
                raise
            raise SinkNameInUse(
                f"the name {self.name!r} belongs to a {error.found.query}; this is a {query}. Was a topic recreated? "
                "Use another name, or adopt=True (--adopt), which takes the name over and starts from the beginning",
                error.found,
            ) from error
        plan = work.plan
        self.position = {int(partition): at for partition, at in json.loads(plan.position).items()}
        records, size, whole, batches = (
            sum(column) for column in zip((0, 0, 0, 0), *plan.copied.values(), strict=True)
        )
        return Round(outcome.batch, records, size, whole, batches, self.lag(upto), time.monotonic() - began)

    def plan(self, stored: str, upto: Mapping[int, int]) -> CopyPlan:
        """Plan a round: from the position of the progress record up to `upto`, within the limit of a round."""
        known = {int(partition): at for partition, at in json.loads(stored).items()} if stored else {}
        if len(upto) > len(known):
            self._fit_target(max(upto) + 1, goes_on=bool(known))
        earliest = {p: at.offset for p, at in self.admin.offsets(self.topic, EARLIEST).items()}
        if any(at > upto.get(partition, at) for partition, at in known.items()):
            upto = self.latest()  # the previous copy went on after `upto` was read
        begin = {partition: known.get(partition, earliest[partition]) for partition in upto}
        if self._adopt and self.position is None:
            begin = {partition: min(max(at, earliest[partition]), upto[partition]) for partition, at in begin.items()}
        elif known:
            # A partition without a position is new, and nothing of it was copied.
            self._check({partition: known.get(partition, 0) for partition in {*known, *upto}}, earliest, upto)
        start = {TopicPartition(self.topic, partition): at for partition, at in begin.items()}
        stop = {TopicPartition(self.topic, partition): max(at, begin[partition]) for partition, at in upto.items()}
        most = self.offsets_per_round
        # A round costs as much as some hundred thousand small records, so a small remainder does not get its own. It
        # may even hold no record: markers of transactions count as offsets.
        reached = offsets.limited(start, stop, most, leeway=most // 4)
        return CopyPlan(
            offsets.ranges(start, reached), json.dumps({str(where.partition): at for where, at in reached.items()})
        )

    def _fit_target(self, partitions: int, *, goes_on: bool) -> None:
        """Add the partitions that the target lacks, if this copy has written to it before: then the source got new
        ones. Reject a target that it has not written to, which may be the wrong one."""
        admin = self.runner.admin
        there = len(admin.describe_topic(self.target_topic).partitions)
        if there >= partitions:
            return
        fewer = f"{self.topic} has {partitions} partitions, the target {self.target_topic} only {there}"
        by_hand = f"`fencepost topic alter {self.target_topic} --partitions {partitions}` adds them"
        if not goes_on:
            raise ConfigError(f"{fewer}. Use another target, or add partitions to this one: {by_hand}")
        try:
            admin.create_partitions(self.target_topic, partitions)
        except ServerError as error:
            raise ServerError(
                error.code,
                f"{fewer}, and the copy could not add any: {error.reason}. {by_hand}; the copy then continues where it "
                "stopped",
            ) from error
        logger.info("%s: added partitions to the target", fewer)

    def _check(self, known: Mapping[int, int], earliest: Mapping[int, int], upto: Mapping[int, int]) -> None:
        """Raise DataLost if the next offsets are deleted, or beyond the end of the log."""
        for partition, at in known.items():
            if at < earliest.get(partition, at):
                why = f"the log starts at {earliest[partition]} now: retention deleted the records before"
            elif at > upto.get(partition, at):
                why = f"the log ends at {upto[partition]}: was the topic recreated?"
            else:
                continue
            raise DataLost(
                f"{self.topic}-{partition} is copied up to offset {at}, but {why}. adopt=True (--adopt) continues with "
                "the records that are left"
            )

    def carry(self, transaction: SharedTransaction, ranges: list[Range]) -> list[CopiedRange]:
        """Copy the ranges in one Spark job.

        A task costs its worker as much CPU as a hundred thousand small records, and a core is idle between two tasks.
        So there is one task per core, with several ranges each, where the number of cores is known. Otherwise there is
        one per range."""
        context = self._spark.sparkContext
        task = _task(self.source, self.target, self.target_topic, self.max_bytes, transaction, compacted=self.compacted)
        shares = offsets.shares(ranges, known_cores(context) or len(ranges))
        found: list[CopiedRange] = context.parallelize(shares, len(shares)).flatMap(task).collect()
        return found


class _CopyRound(Content):
    """The content of one round."""

    advice = Advice(
        when_slow="copy fewer offsets per transaction (--round; offsets_per_round= of Copy)",
        when_untimely="let the target write its own time (message.timestamp.type=LogAppendTime)",
        when_absent="`--adopt` (adopt=True) copies everything to the new topic",
    )

    def __init__(self, copy: Copy, upto: Mapping[int, int]) -> None:
        self.plan = CopyPlan([], "")
        self._copy = copy
        self._upto = upto

    def freeze(self, position: str) -> FrozenContent:
        self.plan = self._copy.plan(position, self._upto)
        return FrozenContent(position=self.plan.position)

    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        if not self.plan.ranges:
            return
        copied = self._copy.carry(transaction, self.plan.ranges)
        raise_failed([each.published for each in copied])
        for published, counts in copied:
            if published.last_sequence != counts.records - 1:
                raise ServerError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{published.topic}-{published.partition}: {counts.records} records copied, but the last sequence "
                    f"is {published.last_sequence}",
                )
            self.plan.copied[published.partition] = counts

    def records(self) -> Mapping[TopicPartition, int]:
        copied, topic = self.plan.copied, self._copy.target_topic
        return {
            TopicPartition(topic, each.partition): copied.get(each.partition, Copied()).records
            for each in self.plan.ranges
        }


def _name_of(text: str) -> str:
    """Turn `text` into a valid sink name. A hash keeps names apart that had to be shortened."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", text)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _refuse_second_attempt(wanted: Range) -> None:
    """Reject second attempts of a task. A second attempt resumes after the number of records that the first has
    written, which is wrong if compaction has deleted some of them in between."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise FencepostError(f"{wanted} is of a compacted topic: no second attempt; the whole round is copied again")


def _task(
    source: ClientSettings,
    target: ClientSettings,
    topic: str,
    max_bytes: int,
    transaction: SharedTransaction,
    *,
    compacted: bool = False,
) -> Callable[[Iterable[Range]], list[CopiedRange]]:
    """Return the function that copies the ranges of one Spark task."""

    def copy(reading: Routes, channels: LeaderChannels, wanted: Range) -> CopiedRange:
        records = size = whole = batches = 0
        writer = PartitionWriter(channels, transaction, TopicPartition(topic, wanted.partition))
        for fetched in fetch(reading, wanted, max_bytes=_FETCH_BYTES):
            for batch in fetched:
                batches += 1
                taken = whole_batch(batch, wanted, max_bytes)
                whole += taken is not None
                for copied in (taken,) if taken is not None else encoded_again(batch, wanted, max_bytes):
                    size += len(copied)
                    records += writer.write(copied)
        published = PublishedPartition(topic, wanted.partition, writer.finish())
        return CopiedRange(published, Copied(records, size, whole, batches))

    def task(share: Iterable[Range]) -> list[CopiedRange]:
        with Routes(source) as reading, Routes(target) as writing, LeaderChannels(writing) as channels:
            done = []
            for wanted in share:
                if compacted:
                    _refuse_second_attempt(wanted)
                try:
                    done.append(copy(reading, channels, wanted))
                except ServerError as error:
                    done.append(CopiedRange(failed(TopicPartition(topic, wanted.partition), error)))
                    break
            return done

    return task

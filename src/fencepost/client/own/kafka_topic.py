"""A group's owners on Apache Kafka: its compacted topic, and the hands that carry out a claim's steps.

`__fencepost_own.GROUP` has one partition, a record per resource, and one per claim that waits; it is written only in
transactions of the group's claim id. What is done in which order, and what it means, is decided in
`core/own/kafka_steps.py`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

from fencepost.client.admin import Admin
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.link import Link
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import Address, ClientSettings
from fencepost.client.manage.lasting import create_lasting_topic
from fencepost.client.manage.results import LastOwner, OwnerDescription, OwnersDescription, WaitingDescription
from fencepost.client.reader import Reader, ReadRecord
from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.own.kafka_line import Records
from fencepost.core.own.kafka_records import OwnerRecord, WaitingRecord
from fencepost.core.own.kafka_steps import (
    ClaimStep,
    ClaimSteps,
    CommitRecords,
    DescribeWriter,
    Enlist,
    FenceClaims,
    FenceWriters,
    InDoubt,
    OutcomeT,
    Overtaken,
    ReadRecords,
    WriteRecords,
)
from fencepost.core.producers.pid import NAME_TAKEN, Identity
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.kernel import Row, encode_batch
from fencepost.types import Milliseconds, Offset, TopicPartition

TOPIC_PREFIX: Final = "__fencepost_own."
CLAIM_ID_PREFIX: Final = "fencepost.own.claims."
WRITE_ID_PREFIX: Final = "fencepost.own.writer."
_LONGEST_GROUP: Final = 200
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted, and every claim reads the topic from its beginning: small ones, then.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_CLAIM_TIMEOUT_MS: Final = 30_000
_LINE_KEY: Final = b"\xff"
"""What the key of a waiting claim's record begins with, before its write id. No resource's does: it is not UTF-8."""
_FENCED_AT_ONCE: Final = 8
_BATCH_BYTES: Final = 256 << 10
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5

_OVERTAKEN: Final = NAME_TAKEN | {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
"""What coordinator and leader answer to a claims identity that is no longer the newest, or whose transaction ended."""


class GroupOwners:
    """One group's owners. For one thread."""

    def __init__(
        self, settings: ClientSettings, routes: Routes, group: str, *, write_timeout_ms: Milliseconds, patience: float
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._where = TopicPartition(TOPIC_PREFIX + check_group(group), 0)
        self._claims = Transactional(routes, CLAIM_ID_PREFIX + group, patience)
        self._write_timeout_ms = write_timeout_ms
        self._patience = patience
        self.before: Callable[[ClaimStep], None] = _nothing
        """Called before each step: where a test pauses a claimant, or kills it."""

    def carry_out(self, steps: ClaimSteps[OutcomeT]) -> OutcomeT:
        """TimedOut if others were faster for all of `patience`."""
        deadline = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        self._ensure()
        try:
            step = next(steps)
            while True:
                self.before(step)
                try:
                    answer = self._do(step)
                except (Overtaken, InDoubt) as failure:
                    if time.monotonic() + pause > deadline:
                        raise TimedOut(
                            f"{self._where.topic}: others claimed all the time for {self._patience:g} s"
                        ) from failure
                    # Each claimant undoes what the others have begun, so they make room for each other.
                    time.sleep(random.uniform(0, pause))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    step = steps.throw(failure)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            owned: OutcomeT = end.value
            return owned

    def records(self) -> Records:
        """The records as they can be read now; nobody is disturbed."""
        return self._read(settled=False) if self._exists() else Records({}, {})

    def follow(self) -> Following:
        """The records, and what becomes of them."""
        self._ensure()
        end = self._end(settled=False)
        records = self._read_to(end)
        return Following(
            records, Reader(self._settings, self._where, start={self._where: end}, patience=self._patience)
        )

    # --- the steps ---

    def _do(self, step: ClaimStep) -> Any:
        match step:
            case FenceWriters(write_ids):
                return self._fence(write_ids)
            case FenceClaims():
                return self._claims.init(_CLAIM_TIMEOUT_MS)
            case ReadRecords():
                return self._read()
            case DescribeWriter(write_id):
                known = Transactional(self._routes, write_id, self._patience).describe()
                return None if known is None else known.identity
            case Enlist(claims):
                with _told_when_overtaken():
                    self._claims.add_partitions(claims, [self._where])
            case WriteRecords(claims, records, line):
                with _told_when_overtaken():
                    self._write(claims, _rows(records, line))
            case CommitRecords(claims):
                self._commit(claims)
        return None

    def _fence(self, write_ids: tuple[str, ...]) -> tuple[Identity, ...]:
        def fence(write_id: str) -> Identity:
            return Transactional(self._routes, write_id, self._patience).init(self._write_timeout_ms)

        if len(write_ids) == 1:
            return (fence(write_ids[0]),)
        with ThreadPoolExecutor(_FENCED_AT_ONCE, "fencepost-fence") as pool:  # they have different coordinators
            return tuple(pool.map(fence, write_ids))

    def _commit(self, claims: Identity) -> None:
        try:
            with _told_when_overtaken():
                self._claims.end(claims, commit=True)
        except (Unreachable, TimedOut) as error:
            raise InDoubt from error

    def _write(self, claims: Identity, records: Iterable[Row]) -> None:
        """One batch after the other, each until it is answered: a repeated one is known by its sequence."""
        sequence = 0
        for rows in _batches(records):
            batch = encode_batch(rows, pid=claims.pid, epoch=claims.epoch, base_sequence=sequence, transactional=True)
            self._write_batch(batch)
            sequence += len(rows)

    def _write_batch(self, batch: bytearray) -> None:
        topic, partition = self._where
        deadline = time.monotonic() + self._patience
        while True:
            try:
                (leader,) = self._routes.retried(lambda: self._routes.leaders(topic, [partition]))
                with self._link(Address(leader.host, leader.port)) as link:
                    link.send_batch(topic, partition, batch, self._claims.name)
                    produced = link.receive_produced()
                code = ErrorCode.of(produced.error_code)
                if code is ErrorCode.NONE:
                    return
                error: FencepostError = ServerError(code, f"writing to {topic}")
            except Unreachable as unreachable:
                error = unreachable
            if not error.retriable or time.monotonic() > deadline:
                raise error
            time.sleep(_FIRST_PAUSE)

    def _link(self, address: Address) -> Link:
        settings = self._settings
        return Link(address, timeout=settings.request_timeout, client_id=settings.client_id, security=settings.security)

    # --- the topic ---

    def _ensure(self) -> None:
        if self._exists():
            return
        with Admin(self._settings) as admin:
            create_lasting_topic(admin, self._where.topic, 1, configs=_CONFIGS)

    def _exists(self) -> bool:
        try:
            self._routes.retried(lambda: self._routes.topic(self._where.topic))
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return False
        return True

    def _read(self, *, settled: bool = True) -> Records:
        """All that is committed. `settled`: after a fence nothing is open any more, so the very end is waited for."""
        return self._read_to(self._end(settled=settled))

    def _end(self, *, settled: bool) -> Offset:
        with Admin(self._settings) as admin:
            return admin.latest(self._where.topic, read_committed=not settled)[self._where.partition]

    def _read_to(self, end: Offset) -> Records:
        found = Records({}, {})
        stop = {self._where.partition: end}
        with Reader(self._settings, self._where, stop=stop, patience=self._patience) as reader:
            while (records := reader.poll(self._patience)) is not None:
                found = _with(found, records)
        return found


class Following(Closing):
    """A group's records as they change, for a claim that waits."""

    def __init__(self, records: Records, reader: Reader) -> None:
        self.records = records
        self._reader = reader

    def wait(self, seconds: float) -> None:
        """Returns when something has changed, or when the time is over."""
        with suppress(TimedOut):
            self.records = _with(self.records, self._reader.poll(seconds) or [])

    def close(self) -> None:
        self._reader.close()


def _with(before: Records, records: list[ReadRecord]) -> Records:
    """The records after these."""
    owners, line = dict(before.owners), dict(before.line)
    for record in records:
        key, value = record.key, record.value
        if key is None:
            continue
        if key.startswith(_LINE_KEY):
            write_id = key.removeprefix(_LINE_KEY).decode()
            line.pop(write_id, None)
            if value is not None:
                line[write_id] = WaitingRecord.decode(value)
        elif value is not None:
            owners[key.decode()] = OwnerRecord.decode(value)
    return Records(owners, line)


def describe_owners(settings: ClientSettings, routes: Routes, group: str | None) -> OwnersDescription:
    """Who owns what, in one group or in all. Whether they are alive nobody knows."""
    with Admin(settings) as admin:
        topics = [topic.name for topic in admin.topics(internal=True) if topic.name.startswith(TOPIC_PREFIX)]
    found: list[OwnerDescription] = []
    waiting: list[WaitingDescription] = []
    for name in [name.removeprefix(TOPIC_PREFIX) for name in topics]:
        if group in (None, name):
            owners = GroupOwners(settings, routes, name, write_timeout_ms=0, patience=settings.request_timeout)
            records = owners.records()
            waiting += [
                WaitingDescription(name, each.resources, each.who, write_id)
                for write_id, each in sorted(records.line.items(), key=lambda entry: entry[1].arrival)
            ]
            found += [
                OwnerDescription(
                    name, resource, record.generation, record.token, record.since_ms, record.who, record.owner
                )
                for resource, record in sorted(records.owners.items())
                if record.owner is not None
            ]
    return OwnersDescription(tuple(found), tuple(waiting))


def describe_last(
    settings: ClientSettings, routes: Routes, group: str, resources: Sequence[str]
) -> dict[str, LastOwner]:
    """The last grant of each, as the group's records have it; whose it was they forget when it is given back."""
    group_owners = GroupOwners(settings, routes, group, write_timeout_ms=0, patience=settings.request_timeout)
    records = group_owners.records().owners
    return {
        name: LastOwner(record.token, record.since_ms, record.who, record.owner or "")
        for name in resources
        if (record := records.get(name)) is not None
    }


@contextmanager
def _told_when_overtaken() -> Iterator[None]:
    try:
        yield
    except FencepostError as error:
        if error.code in _OVERTAKEN:
            raise Overtaken from error
        raise


def check_group(group: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", group) or len(group) > _LONGEST_GROUP:
        raise ConfigError(
            "on Apache Kafka a group of owners has a topic of its own: its name has letters, digits, '.', '_' and '-', "
            f"at most {_LONGEST_GROUP} of them: not {group!r}"
        )
    return group


def _rows(records: Mapping[str, OwnerRecord], line: Mapping[str, WaitingRecord | None]) -> Iterator[Row]:
    now_ms = time.time_ns() // 1_000_000
    for name, record in records.items():
        yield name.encode(), record.encode(), record.since_ms, None
    for write_id, waiting in line.items():
        yield _LINE_KEY + write_id.encode(), None if waiting is None else waiting.encode(), now_ms, None


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        length = sum(len(part) for part in row[:2] if part is not None)
        if batch and size + length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _nothing(step: ClaimStep) -> None:
    """Where nobody looks on."""

"""A group's compacted topic on Apache Kafka, and the execution of a claim's steps.

`__fencepost_own.GROUP` has one partition, with a record per resource and one per waiting claim. It is written only in
transactions of the group's claim id. `core/own/kafka_steps.py` decides the order of the steps and their meaning.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from fencepost.client.admin.results import LastOwner, OwnersDescription
from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import SocketNetwork
from fencepost.client.read.fetcher import Fetcher, FetchOptions
from fencepost.client.transactions.compacted_topic import CompactedTopic
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.shared_writer import SharedTransaction
from fencepost.clock import SystemClock
from fencepost.core.own.kafka_records import OwnerRecord, Records, WaitingClaimRecord
from fencepost.core.own.kafka_steps import (
    AddToTransaction,
    ClaimStep,
    ClaimSteps,
    CommitRecords,
    DescribeWriter,
    FenceClaims,
    FenceWriters,
    InDoubt,
    OutcomeT,
    Overtaken,
    ReadRecords,
    WriteRecords,
)
from fencepost.core.producers.pid import NAME_TAKEN, Identity, is_outdated
from fencepost.core.rows import OwnerDescription, WaitingDescription
from fencepost.core.steps import carry_out
from fencepost.errors import ConfigError, ErrorCode, FencepostError, TimedOut, Unreachable
from fencepost.kernel import Record, Row, decode_batch, encode_batch
from fencepost.types import Milliseconds, Offset

TOPIC_PREFIX: Final = "__fencepost_own."
CLAIM_ID_PREFIX: Final = "fencepost.own.claims."
WRITE_ID_PREFIX: Final = "fencepost.own.writer."
_LONGEST_GROUP: Final = 200
_CONFIGS: Final = {
    # Only closed segments are compacted, and every claim reads the whole topic, so segments are small.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_CLAIM_TIMEOUT_MS: Final = 30_000
_LINE_KEY: Final = b"\xff"
"""Key prefix of a waiting claim's record, before its write id. It is not UTF-8, so no resource has it."""
_FENCED_AT_ONCE: Final = 8
_BATCH_BYTES: Final = 256 << 10
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5

_OVERTAKEN: Final = NAME_TAKEN | {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
"""Errors of coordinator and leader for a claim id's identity that is stale, or whose transaction has ended."""


class GroupOwners:
    """The owners of one group. Not thread-safe."""

    def __init__(
        self,
        settings: ClientSettings,
        routes: Routes,
        group: str,
        *,
        write_timeout_ms: Milliseconds,
        patience: float,
        quick: Routes | None = None,
    ) -> None:
        """`quick`: routes with a short request timeout, for all steps of a claim: each may be repeated, and a node that
        hangs is replaced by another long before the usual timeout."""
        self._settings = settings
        self._routes = quick = routes if quick is None else quick
        topic = TOPIC_PREFIX + check_group(group)
        self._topic = CompactedTopic(quick, topic, configs=_CONFIGS, patience=patience)
        self._creation = CompactedTopic(routes, topic, configs=_CONFIGS)
        self._claims = Transactional(quick, CLAIM_ID_PREFIX + group, patience)
        self._write_timeout_ms = write_timeout_ms
        self._patience = patience
        self.before: Callable[[ClaimStep], None] = _nothing
        """Called before each step; a test pauses or kills a claimant here."""

    def carry_out(self, steps: ClaimSteps[OutcomeT]) -> OutcomeT:
        """Carry out the steps. Raise TimedOut if other claimants were faster for all of `patience`."""
        # Each claimant fences the others' attempts: pauses of random length let one of them through.
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience, sleep=_sleep_up_to)

        def perform(step: ClaimStep) -> Any:
            self.before(step)
            try:
                return self._do(step)
            except (Overtaken, InDoubt) as failure:
                if not pauses.wait():
                    topic = self._topic.where.topic
                    raise TimedOut(f"{topic}: others claimed all the time for {self._patience:g} s") from failure
                raise

        self._creation.ensure()
        return carry_out(steps, perform, (Overtaken, InDoubt))

    def records(self) -> Records:
        """Read the committed records, without fencing anybody."""
        return self._read(settled=False) if self._topic.exists() else Records({}, {})

    def follow(self) -> Following:
        """Return the records, with their later changes."""
        self._creation.ensure()
        end = self._topic.end(committed=True)
        options = FetchOptions(patience=self._patience)
        network, clock = SocketNetwork(self._settings.security), SystemClock()
        fetcher = Fetcher(self._settings, options, network, clock, {self._topic.where: (end, None)})
        return Following(self._read_to(end), fetcher)

    # --- the steps ---

    def _do(self, step: ClaimStep) -> Any:
        match step:
            case FenceWriters(write_ids):
                return self._fence(write_ids)
            case FenceClaims():
                return self._claims.init(_CLAIM_TIMEOUT_MS)
            case ReadRecords():
                return self._read_patiently()
            case DescribeWriter(write_id, mine):
                return self._describe(write_id, mine)
            case AddToTransaction(claims):
                with _told_when_overtaken():
                    self._claims.add_partitions(claims, [self._topic.where])
            case WriteRecords(claims, records, line):
                with _told_when_overtaken():
                    transaction = SharedTransaction(self._claims.name, claims)
                    self._topic.write(transaction, map(encode_batch, _batches(_rows(records, line))))
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

    def _describe(self, write_id: str, mine: Identity) -> Identity | None:
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience)
        while True:
            known = Transactional(self._routes, write_id, self._patience).describe()
            if known is None or not is_outdated(known.identity, mine):
                return None if known is None else known.identity
            if not pauses.wait():
                raise TimedOut(f"no coordinator knows the newest epoch of {write_id} within {self._patience:g} s")

    def _commit(self, claims: Identity) -> None:
        try:
            with _told_when_overtaken():
                self._claims.end(claims, commit=True)
        except (Unreachable, TimedOut) as error:
            raise InDoubt from error

    def _read_patiently(self) -> Records:
        """Read all committed records, from the next leader if this one hangs."""
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience)
        while True:
            try:
                return self._read()
            except FencepostError as error:
                is_cured_by_waiting = isinstance(error, Unreachable | TimedOut) or error.code.retriable
                if not is_cured_by_waiting or keeps_us_out(error) or not pauses.wait():
                    raise

    def _read(self, *, settled: bool = True) -> Records:
        """Return all committed records. `settled`: after a fence no transaction can stay open, so wait for the end."""
        return self._read_to(self._topic.end(committed=not settled))

    def _read_to(self, end: Offset) -> Records:
        return _with(Records({}, {}), self._topic.records(self._topic.first(), end))


class Following(Closing):
    """A group's records and their changes, for a waiting claim."""

    def __init__(self, records: Records, fetcher: Fetcher) -> None:
        self.records = records
        self._fetcher = fetcher

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while (chunk := self._fetcher.take()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._fetcher.run_once(left)
        decoded = (record for batch in chunk.batches for record in decode_batch(batch))
        self.records = _with(self.records, (record for record in decoded if record.offset >= chunk.start))

    def close(self) -> None:
        self._fetcher.close()


def _with(before: Records, records: Iterable[Record]) -> Records:
    """Return the state after these records."""
    owners, line = dict(before.owners), dict(before.line)
    for record in records:
        key, value = record.key, record.value
        if key is None:
            continue
        if key.startswith(_LINE_KEY):
            write_id = key.removeprefix(_LINE_KEY).decode()
            line.pop(write_id, None)
            if value is not None:
                line[write_id] = WaitingClaimRecord.decode(value)
        elif value is not None:
            owners[key.decode()] = OwnerRecord.decode(value)
    return Records(owners, line)


def describe_owners(settings: ClientSettings, routes: Routes, group: str | None) -> OwnersDescription:
    """Describe the owners and waiting claims of one group or all groups. Dead owners are included."""
    admin = TopicAdmin(routes)
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
    """Describe the last grant of each resource. After a release its records no longer name the owner."""
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


def _rows(records: Mapping[str, OwnerRecord], line: Mapping[str, WaitingClaimRecord | None]) -> Iterator[Row]:
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


def _sleep_up_to(seconds: float) -> None:
    time.sleep(random.uniform(0, seconds))


def _nothing(step: ClaimStep) -> None:
    """Ignore the step."""

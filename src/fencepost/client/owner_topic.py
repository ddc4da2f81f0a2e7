"""A group's owners on Apache Kafka: its compacted topic, and the hands that carry out a claim's steps.

`__fencepost_own.GROUP` has one partition and a record per resource; it is written only in transactions of the group's
claim id. What is done in which order, and what it means, is decided in `core/claim_steps.py`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fencepost.client.admin import Admin
from fencepost.client.link import Link
from fencepost.client.reader import Reader
from fencepost.client.results import OwnerDescription, Owners
from fencepost.client.routing import Routes
from fencepost.client.settings import Address, ClientSettings
from fencepost.client.transactional import Transactional
from fencepost.core.claim_steps import (
    Ask,
    Commit,
    Enlist,
    FenceClaims,
    FenceWriter,
    InDoubt,
    Look,
    Overtaken,
    Owned,
    Step,
    Steps,
    Write,
)
from fencepost.core.owner_records import OwnerRecord, Table
from fencepost.core.pid import NAME_TAKEN, Identity
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.kernel import Row, encode_batch
from fencepost.types import Milliseconds, TopicPartition

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
        self.before: Callable[[Step], None] = _nothing
        """Called before each step: where a test pauses a claimant, or kills it."""

    def carry_out(self, steps: Steps) -> Owned:
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
            owned: Owned = end.value
            return owned

    def table(self) -> Table:
        """The records as they can be read now; nobody is disturbed."""
        return self._read(settled=False) if self._exists() else {}

    # --- the steps ---

    def _do(self, step: Step) -> Any:
        match step:
            case FenceWriter(write_id):
                return Transactional(self._routes, write_id, self._patience).init(self._write_timeout_ms)
            case FenceClaims():
                return self._claims.init(_CLAIM_TIMEOUT_MS)
            case Look():
                return self._read()
            case Ask(write_id):
                known = Transactional(self._routes, write_id, self._patience).describe()
                return None if known is None else known.identity
            case Enlist(claims):
                with _told_when_overtaken():
                    self._claims.add_partitions(claims, [self._where])
            case Write(claims, records):
                with _told_when_overtaken():
                    self._write(claims, records)
            case Commit(claims):
                self._commit(claims)
        return None

    def _commit(self, claims: Identity) -> None:
        try:
            with _told_when_overtaken():
                self._claims.end(claims, commit=True)
        except (Unreachable, TimedOut) as error:
            raise InDoubt from error

    def _write(self, claims: Identity, records: Mapping[str, OwnerRecord]) -> None:
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
        try:
            with Admin(self._settings) as admin:
                admin.create_topic(self._where.topic, 1, configs=_CONFIGS)
        except ServerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # somebody was faster
                raise

    def _exists(self) -> bool:
        try:
            self._routes.retried(lambda: self._routes.topic(self._where.topic))
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return False
        return True

    def _read(self, *, settled: bool = True) -> Table:
        """All that is committed. `settled`: after a fence nothing is open any more, so the very end is waited for."""
        topic, partition = self._where
        with Admin(self._settings) as admin:
            end = admin.latest(topic, read_committed=not settled)[partition]
        table: dict[str, OwnerRecord] = {}
        with Reader(self._settings, self._where, stop={partition: end}, patience=self._patience) as reader:
            while (records := reader.poll(self._patience)) is not None:
                for record in records:
                    if record.key is not None and record.value is not None:
                        table[record.key.decode()] = OwnerRecord.decode(record.value)
        return table


def describe_owners(settings: ClientSettings, routes: Routes, group: str | None) -> Owners:
    """Who owns what, in one group or in all. Whether they are alive nobody knows."""
    with Admin(settings) as admin:
        topics = [topic.name for topic in admin.topics(internal=True) if topic.name.startswith(TOPIC_PREFIX)]
    found: list[OwnerDescription] = []
    for name in [name.removeprefix(TOPIC_PREFIX) for name in topics]:
        if group in (None, name):
            owners = GroupOwners(settings, routes, name, write_timeout_ms=0, patience=settings.request_timeout)
            found += [
                OwnerDescription(
                    name, resource, record.generation, record.token, record.since_ms, record.who, record.owner
                )
                for resource, record in sorted(owners.table().items())
                if record.owner is not None
            ]
    return Owners(tuple(found), ())


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


def _batches(records: Mapping[str, OwnerRecord]) -> Iterator[list[Row]]:
    rows: list[Row] = []
    size = 0
    for name, record in records.items():
        key, value = name.encode(), record.encode()
        if rows and size + len(key) + len(value) > _BATCH_BYTES:
            yield rows
            rows, size = [], 0
        rows.append((key, value, record.since_ms, None))
        size += len(key) + len(value)
    if rows:
        yield rows


def _nothing(step: Step) -> None:
    """Where nobody looks on."""

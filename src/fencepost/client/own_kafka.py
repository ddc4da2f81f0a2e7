"""The road to Apache Kafka: what is owned is what may be written under a write id (OWN-9).

A claimant gets a transactional id of its own, the write id, with its first claim, and writes only in transactions under
it from then on: a producer in implicit ones (`implicit.py`), a reader in one for each commit of offsets. Whoever takes
over fences the write id before being told so; from then on the brokers refuse the old owner's writes, and what it had
not committed is aborted. Readers that read committed records never see it.

Kafka has nothing that ends with a connection, and nobody who waits or watches: waiting claims and sessions are refused
here. What is owned stays owned until it is given back, which `close` does, or taken over.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress

from fencepost.client.options import ProducerOptions
from fencepost.client.owner_topic import WRITE_ID_PREFIX, GroupOwners
from fencepost.client.reader import Reader
from fencepost.client.routing import Routes
from fencepost.client.sender import Sender
from fencepost.client.settings import ClientSettings
from fencepost.client.transaction import wait_for_identity
from fencepost.client.transactional import Transactional, abort_open
from fencepost.core.claim import Demand, Held
from fencepost.core.claim_steps import claim, release
from fencepost.core.owner_records import Claimant
from fencepost.core.pid import NAME_TAKEN, Identity
from fencepost.errors import ConfigError, ErrorCode, Fenced, FencepostError, ServerError, TimedOut
from fencepost.types import Milliseconds, Offset, TopicPartition


class KafkaOwner:
    """A claimant, whatever it writes. For one thread at a time."""

    def __init__(
        self, settings: ClientSettings, routes: Routes, *, transaction_timeout: float = 60.0, patience: float = 60.0
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._timeout_ms: Milliseconds = round(transaction_timeout * 1000)
        self._patience = patience
        self._who = f"{socket.gethostname()}:{os.getpid()}"
        self.write_id = WRITE_ID_PREFIX + uuid.uuid4().hex
        self.writing = Transactional(routes, self.write_id, patience)
        self.identity: Identity | None = None
        """The epoch under which it writes; None: it has claimed nothing yet."""
        self._aborted: Identity | None = None
        """The epoch under which nothing is open, since it is to be replaced."""
        self._groups: dict[str, GroupOwners] = {}
        self._held: dict[tuple[str, str], None] = {}

    def group(self, name: str) -> GroupOwners:
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = GroupOwners(
                self._settings, self._routes, name, write_timeout_ms=self._timeout_ms, patience=self._patience
            )
        return found

    def claim(self, demand: Demand) -> list[Held]:
        """Of a fresh claimant, `identity` is known afterwards."""
        if demand.wait is not None:
            raise _not_on_kafka("waiting claims (wait=…): say generation=N")
        if demand.session:
            raise _not_on_kafka("sessions (session=…): an owner that is gone is replaced by whoever claims")
        steps = claim(self._claimant(demand.group), demand.wanted(), self.identity)
        owned = self.group(demand.group).carry_out(steps)
        self.identity = owned.identity
        self._held.update(dict.fromkeys((demand.group, row.name) for row in owned.rows))
        return owned.rows

    def release(self, group: str, names: Sequence[str]) -> None:
        """What was written there must be settled before."""
        if self.identity is None:
            return
        self.group(group).carry_out(release(self._claimant(group), names, self.identity))
        for name in names:
            self._held.pop((group, name), None)

    def release_all(self) -> None:
        """Fenced if it owns nothing any more."""
        for group in {group for group, _ in self._held}:
            self.release(group, [name for each, name in self._held if each == group])

    def renew(self) -> Identity:
        """The write id's next epoch, if it is ours still: what is on its way under the one before comes too late."""
        if self.identity is not None and self.identity != self._aborted:
            abort_open(self.writing, self.identity)
            self._aborted = self.identity  # not again: once the next epoch is given, that would be refused
        self.identity = self.writing.init(self._timeout_ms, self.identity)
        return self.identity

    def is_committed(self, partition: TopicPartition, offset: Offset) -> bool:
        """Whether a record that was acknowledged there counts; waits until it is decided."""
        stop = {partition: offset + 1}
        with Reader(self._settings, partition, start={partition: offset}, stop=stop, patience=self._patience) as reader:
            while (records := reader.poll(self._patience)) is not None:
                if records:
                    return True
        return False

    def _claimant(self, group: str) -> Claimant:
        return Claimant(group, self.write_id, uuid.uuid4().hex, self._who, time.time_ns() // 1_000_000)


class KafkaProducerRoad:
    """For a producer: from its first claim on, it sends in transactions of its write id."""

    def __init__(self, sender: Sender, owner: KafkaOwner, options: ProducerOptions) -> None:
        name = options.name
        if not options.idempotent:
            raise ConfigError("on Apache Kafka an owner writes in transactions: it has to be idempotent")
        if name is not None:
            raise ConfigError(
                f"on Apache Kafka an owner writes under an id of its own, so it cannot be named {name!r}: "
                "make the producer without a name"
            )
        self._sender = sender
        self._patience = options.delivery_timeout
        self.owner = owner

    def claim(self, demand: Demand) -> list[Held]:
        sender, owner = self._sender, self.owner
        self._settle()
        self._catch_up()
        rows = owner.claim(demand)
        if sender.standing.implicit is None:
            try:
                self._write_under()
            except BaseException:
                with suppress(FencepostError):
                    owner.release(demand.group, [row.name for row in rows])
                raise
        return rows

    def _write_under(self) -> None:
        sender, owner = self._sender, self.owner
        identity = owner.identity
        assert identity is not None
        deadline = time.monotonic() + self._patience
        while not sender.errands.call(lambda: sender.write_under(owner.writing, identity, owner.is_committed)):
            if time.monotonic() > deadline:
                raise TimedOut("other threads send all the time: own first, then send")
            self._settle()

    def _catch_up(self, *, while_closing: bool = False) -> None:
        """Once it writes under the write id, the send thread knows its epoch; the next one may be on its way."""
        if self._sender.standing.implicit is not None:
            self.owner.identity = wait_for_identity(self._sender, self._patience, while_closing=while_closing)

    def release(self, group: str, names: Sequence[str]) -> None:
        standing = self._sender.standing
        if self._sender.errands.call(lambda: standing.transaction is not None and not standing.is_implicit):
            # Whoever claims what nobody owns has no write id to fence: it would be committed among the next owner's.
            raise FencepostError("on Apache Kafka an owner ends its transaction first, then gives back what it owns")
        self._settle()
        self._catch_up()
        self.owner.release(group, names)

    def interrupt(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """What it owned is free, so that the next one need not know the generation."""
        with suppress(FencepostError):  # fenced, or out of reach: whoever comes next takes over
            self._catch_up(while_closing=True)
            self.owner.release_all()

    def _settle(self) -> None:
        queues = self._sender.queues
        queues.wait_until_settled(None)
        if queues.broken is not None:
            raise queues.broken


class KafkaReaderRoad:
    """For a reader: from its first claim on, it commits offsets in transactions of its write id."""

    def __init__(self, settings: ClientSettings) -> None:
        self._routes = Routes(settings)
        self.owner = KafkaOwner(settings, self._routes)
        self._fenced: Fenced | None = None
        self._is_in_doubt = False
        """A step of the last transaction may still be on its way, and must not become one of the next."""

    def claim(self, demand: Demand) -> list[Held]:
        if self._fenced is not None:
            raise self._fenced
        return self.owner.claim(demand)

    def release(self, group: str, names: Sequence[str]) -> None:
        self.owner.release(group, names)

    def interrupt(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        with self._routes, suppress(FencepostError):
            self.owner.release_all()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores a consumer group's offsets, or raises Fenced: then they are not stored, and never will be."""
        writing, who = self.owner.writing, self.owner.identity
        if self._fenced is not None:
            raise self._fenced
        if who is None:
            raise FencepostError("nothing is owned yet")
        doubts: int | None = None
        before = writing.doubts
        is_in_doubt = True  # unless it is seen to its end: Ctrl-C may come in the middle of a step
        try:
            if self._is_in_doubt:
                who, self._is_in_doubt = self.owner.renew(), False
            writing.add_offsets(who, group, {partition: Offset(offset) for partition, offset in offsets.items()})
            doubts = writing.doubts  # only a commit whose answer was lost may have been one
            writing.end(who, commit=True)
            is_in_doubt = False
        except FencepostError as error:
            if error.code not in NAME_TAKEN:
                with suppress(FencepostError):
                    writing.end(who, commit=False)
                is_in_doubt = False
                raise
            self._fenced = Fenced(
                "somebody else owns what this reader owned, or a commit took longer than the transaction timeout",
                persisted="no" if doubts in (None, writing.doubts) else "unknown",
                code=error.code,
            )
            raise self._fenced from error
        finally:
            self._is_in_doubt |= is_in_doubt or writing.doubts != before


def _not_on_kafka(what: str) -> ServerError:
    return ServerError(ErrorCode.UNSUPPORTED_VERSION, f"Apache Kafka has no {what}; fencepost's server does")

"""`own` on Apache Kafka: an owner writes in transactions of its write ids, and a successor fences them (OWN-9).

With its first claim a claimant gets its own transactional ids, its write ids, and from then on writes only in their
transactions: a producer in implicit ones in several lanes (`client/produce/lanes.py`), a reader in one per commit of
offsets. A successor fences all of them before its claim is granted. From then on the brokers reject the old owner's
writes, and its open transactions are aborted, so read_committed readers never see them.

On Kafka nothing ends with a connection. A resource stays owned until it is released, as by `close`, or taken over. An
owner with a session sends heartbeats to Kafka's group coordinator (`kafka_session.py`); when they end, the next
claimant in line (`kafka_line.py`) takes over, by the same fence.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Final

from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.kafka_line import wait_in_line
from fencepost.client.own.kafka_session import ClaimantSession, Liveness, impatient
from fencepost.client.own.kafka_topic import WRITE_ID_PREFIX, GroupOwners
from fencepost.client.produce.lanes import NO_NODE, WriteId
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.sender import Sender
from fencepost.client.read.ranges import Range, fetch_records
from fencepost.client.transactions.coordinator import Transactional, abort_open
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.kafka_records import Claimant, write_ids
from fencepost.core.own.kafka_steps import ClaimOutcome, claim, release
from fencepost.core.own.lease import Lease
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.pid import NAME_TAKEN, Identity, is_outdated
from fencepost.errors import ConfigError, ErrorCode, Fenced, FencepostError, Persisted, ServerError, TimedOut
from fencepost.types import Milliseconds, Offset, TopicPartition

log = logging.getLogger("fencepost.own")

LANES: Final = 8
"""Further write ids of a producer. A takeover fences all of them, so there are not more."""
_CANDIDATES: Final = 64
_PATIENCE_WITH_OTHERS: Final = 3.0
"""Timeout in seconds of the repeated check whether the claimants ahead are alive."""
_PATIENCE_WITH_NODE: Final = 3.0
"""Timeout in seconds of a step of a claim. It is repeated then, by a node that has taken over if this one hangs."""
_LOOK_AGAIN: Final = 0.01
_PATIENCE_AT_END: Final = 3.0
"""Seconds that closing waits for an in-doubt commit. The next owner takes over what is not released by then."""
WAITING_SESSION: Final = 10.0
"""Default session in seconds of a waiting claim: without one, others would wait for a dead claimant."""


class KafkaOwner:
    """A claimant of either kind, producer or reader. For one thread at a time."""

    def __init__(
        self,
        settings: ClientSettings,
        routes: Routes,
        *,
        transaction_timeout: float = 60.0,
        patience: float = 60.0,
        lanes: int = 0,
        lease: Lease | None = None,
    ) -> None:
        """`lanes` is the number of further write ids. Their names are fixed before the first claim, because a successor
        fences the write ids in the record."""
        self._settings = settings
        self._routes = routes
        self._timeout_ms: Milliseconds = round(transaction_timeout * 1000)
        self._patience = patience
        self._quick = Routes(impatient(settings, _PATIENCE_WITH_NODE))
        self._who = f"{socket.gethostname()}:{os.getpid()}"
        self.write_id = WRITE_ID_PREFIX + uuid.uuid4().hex
        self.writing = Transactional(routes, self.write_id, patience)
        self.identity: Identity | None = None
        """The identity under which it writes; None before the first claim."""
        self._aborted: Identity | None = None
        """The identity whose open transaction was aborted before the next epoch is requested."""
        self._lane_count = lanes
        self._coordinators: dict[int, BrokerNode | None] = {}
        """The lanes' coordinators by lane number, chosen with the first claim."""
        self._lane_steps: list[Transactional] = []
        self.lanes: tuple[WriteId, ...] = ()
        """Set together with `identity`."""
        self._groups: dict[str, GroupOwners] = {}
        self._held: dict[tuple[str, str], None] = {}
        self._session: ClaimantSession | None = None
        self.lease = Lease() if lease is None else lease
        self._interrupted = threading.Event()
        self.current: Callable[[], Identity | None] = lambda: self.identity
        """Called on the session's thread: returns the current identity; None while the next one is requested."""
        self.on_lost: Callable[[], None] = _nothing
        """Called on the session's thread after a takeover."""

    def group(self, name: str) -> GroupOwners:
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = GroupOwners(
                self._settings,
                self._routes,
                name,
                write_timeout_ms=self._timeout_ms,
                patience=self._patience,
                quick=self._quick,
            )
        return found

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        """Claim, and set `identity` with the first grant."""
        self._interrupted.clear()
        self.group(request.group)  # reject an invalid group name before anything else
        try:
            has_none_yet = request.wait is not None and self._session is None
            self._keep_alive(request.session or (WAITING_SESSION if has_none_yet else 0.0))
            owned = self._claimed(request)
        except BaseException:
            self._end_session()
            raise
        self._note(owned.identities)
        self._held.update(dict.fromkeys((request.group, row.name) for row in owned.rows))
        self._begin_lease(request, owned.rows)
        return owned.rows

    def _begin_lease(self, request: ClaimRequest, rows: Sequence[OwnedResource]) -> None:
        """Begin or go on with the lease by the newest answered heartbeat. If none is answered, own nothing."""
        session = self._session
        if session is None:
            return
        if not session.wait_until_heard(self._patience):
            with suppress(FencepostError):
                self.release(request.group, [row.name for row in rows])
            raise TimedOut(f"no coordinator answered the heartbeats of {self.write_id} in {self._patience:g} s")
        self.lease.grant(session.heard_since, session.seconds)

    def _note(self, identities: Sequence[Identity]) -> None:
        if self.identity is None:
            names = write_ids(self.write_id, tuple(self._coordinators))[1:]
            self._lane_steps = [Transactional(self._routes, name, self._patience) for name in names]
            lanes: list[WriteId] = []
            for steps, broker, identity in zip(
                self._lane_steps, self._coordinators.values(), identities[1:], strict=True
            ):
                if broker is not None:  # so that it is known even if a broker fails later
                    steps.ask_first(self._routes.to(broker))
                lanes.append(WriteId(steps, steps.name, identity, NO_NODE if broker is None else broker.id))
            self.lanes = tuple(lanes)
        self.identity = identities[0]

    def _choose_lanes(self) -> None:
        """Choose lane numbers whose coordinators are spread over the brokers, so that most leaders have one."""
        if self._coordinators or not self._lane_count:
            return
        numbers = range(1, _CANDIDATES + 1)
        names = dict(zip(write_ids(self.write_id, numbers)[1:], numbers, strict=True))
        try:
            found = self._quick.retried(lambda: self._quick.transaction_coordinators(list(names)))
        except ServerError as error:
            log.info("the lanes of %s are not spread over the brokers: %s", self.write_id, error)
            self._coordinators = dict.fromkeys(numbers[: self._lane_count])
            return
        by_node: dict[int, list[int]] = {}
        for name, broker in found.items():
            by_node.setdefault(broker.id, []).append(names[name])
        in_turn = [number for row in zip_longest(*by_node.values()) for number in row if number is not None]
        coordinators = {names[name]: broker for name, broker in found.items()}
        self._coordinators = {number: coordinators[number] for number in in_turn[: self._lane_count]}

    def _claimed(self, request: ClaimRequest) -> ClaimOutcome:
        self._choose_lanes()
        group, me = self.group(request.group), self._claimant(request.group)
        if request.wait is None:
            return group.carry_out(claim(me, request.claimed(), self._identities))
        with Routes(impatient(self._settings, _PATIENCE_WITH_OTHERS)) as routes:
            return wait_in_line(
                group, Liveness(routes), me, request.claimed(), request.wait, self._interrupted, self._identities
            )

    @property
    def _identities(self) -> tuple[Identity, ...]:
        return () if self.identity is None else (self.identity,)

    def interrupt(self) -> None:
        """Abort a waiting claim, from another thread."""
        self._interrupted.set()

    def release(self, group: str, names: Sequence[str]) -> None:
        """Release resources. All records written there must be settled."""
        if self.identity is None:
            return
        self.group(group).carry_out(release(self._claimant(group), names, self._identities))
        for name in names:
            self._held.pop((group, name), None)
        self._end_session()

    def release_all(self) -> None:
        """Release everything; raise Fenced after a takeover. When the lease is over, leave it to the next owner: the
        server is probably out of reach, and closing should not wait for it."""
        if self.lease.is_over(time.monotonic()):
            return
        for group in {group for group, _ in self._held}:
            self.release(group, [name for each, name in self._held if each == group])

    def close(self) -> None:
        """End the session, without releasing anything."""
        self._end_signs()
        self._quick.close()

    def _end_signs(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- session ---

    @property
    def session(self) -> float:
        """Return the session in seconds, as the coordinator accepted it; 0: none."""
        return 0.0 if self._session is None else self._session.seconds

    def _keep_alive(self, seconds: float) -> None:
        """Begin the session before anything is claimed, so that others find the new owner alive."""
        session = self._session
        if not seconds or (session is not None and session.seconds <= seconds):
            return
        if session is not None:
            session.shorten(seconds)
            return
        self._session = ClaimantSession(
            self._settings, self.write_id, seconds, self._look_after, self._patience, self.lease
        )
        self._session.begin()

    def _end_session(self) -> None:
        if not self._held:
            self._end_signs()
            self.lease.drop()

    def _look_after(self) -> None:
        """Check for a takeover, on the session's thread: this is how an idle owner learns of it."""
        expected = self.current()
        if expected is None or not self._held:
            return
        known = Transactional(self._routes, self.write_id, self._settings.request_timeout).describe()
        if known is not None and is_outdated(known.identity, expected):
            return  # it is asked again with the next heartbeat
        if (known is None or known.identity != expected) and self.current() == expected:
            self.on_lost()

    def renew(self) -> Identity:
        """Bump the write id's epoch, if it is still this owner's, so that delayed requests are rejected."""
        before, self.identity = self.identity, None
        try:
            if before is not None and before != self._aborted:
                abort_open(self.writing, before)
                self._aborted = before  # once only: after the next epoch is given, an abort would be rejected
            before = self.writing.init(self._timeout_ms, before)
        finally:
            self.identity = before
        return before

    def is_committed(self, partition: TopicPartition, offset: Offset) -> bool:
        """Return whether an acknowledged record was committed; wait until that is decided."""
        wanted = Range(*partition, offset, offset + 1)
        return any(True for _ in fetch_records(self._routes, wanted, patience=self._patience))

    def _claimant(self, group: str) -> Claimant:
        session_ms = 0 if self._session is None else self._session.milliseconds
        now_ms = time.time_ns() // 1_000_000
        lanes = tuple(self._coordinators)
        return Claimant(group, self.write_id, uuid.uuid4().hex, self._who, now_ms, lanes, session_ms)


class KafkaProducerBackend:
    """Claims of a producer. From its first claim on, it sends in transactions of its write ids."""

    def __init__(self, sender: Sender, owner: KafkaOwner, options: ProducerOptions) -> None:
        name = options.name
        if not options.idempotent:
            raise ConfigError("on Apache Kafka an owner writes in transactions, so the producer must be idempotent")
        if name is not None:
            raise ConfigError(
                f"on Apache Kafka an owner writes under its own transactional id, so it cannot be named {name!r}: "
                "create the producer without a name"
            )
        self._sender = sender
        self._patience = options.delivery_timeout
        self.owner = owner
        owner.current, owner.on_lost = self._current, self._lost

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        sender, owner = self._sender, self.owner
        sender.flush()
        self._catch_up()
        rows = owner.claim(request)
        sender.call(_nothing)  # it takes a turn, and so looks at the lease
        if not sender.writes_in_lanes:
            try:
                self._write_under()
            except BaseException:
                with suppress(FencepostError):
                    owner.release(request.group, [row.name for row in rows])
                raise
        return rows

    def _current(self) -> Identity | None:
        sender = self._sender
        return sender.call(lambda: sender.identity if sender.writes_in_lanes else None)

    def _lost(self) -> None:
        self._sender.call(lambda: self._sender.settling.fence(ErrorCode.PRODUCER_FENCED))

    def _write_under(self) -> None:
        sender, owner = self._sender, self.owner
        identity = owner.identity
        assert identity is not None
        deadline = time.monotonic() + self._patience
        while not sender.call(lambda: sender.write_under(owner.writing, identity, owner.lanes, owner.is_committed)):
            if time.monotonic() > deadline:
                raise TimedOut("other threads keep sending: own first, then send")
            sender.flush()

    def _catch_up(self, *, while_closing: bool = False) -> None:
        """Take the current identity from the send thread, once that writes under the write id."""
        if self._sender.writes_in_lanes:
            self.owner.identity = self._sender.wait_for_identity(self._patience, while_closing=while_closing)

    def release(self, group: str, names: Sequence[str]) -> None:
        sender = self._sender
        if sender.call(lambda: sender.open_transaction is not None):
            # A claim of a free resource fences nobody, so the transaction could commit under the next owner.
            raise FencepostError("on Apache Kafka an owner must end its transaction before it releases")
        sender.flush()
        self._catch_up()
        self._leave_nothing_in_doubt(self._patience)
        self.owner.release(group, names)

    def _leave_nothing_in_doubt(self, patience: float) -> None:
        """Wait for in-doubt commits. An expired record is settled, but its commit may still be in flight. A claim of a
        free resource fences nobody, so the record could be committed under the next owner."""
        if not self._sender.writes_in_lanes:
            return
        deadline = time.monotonic() + patience
        while self._sender.call(lambda: self._sender.has_commit_in_doubt):
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"no answer to a commit within {patience:g} s, so nothing is released: the next owner takes over "
                    f"with a higher generation{self._sender.trouble()}"
                )
            time.sleep(_LOOK_AGAIN)

    def interrupt(self) -> None:
        self.owner.interrupt()

    def close(self) -> None:
        """Release everything, so that the next owner need not know the generation."""
        with suppress(FencepostError):  # fenced or unreachable: the next owner takes over
            self._catch_up(while_closing=True)
            self._leave_nothing_in_doubt(min(self._patience, _PATIENCE_AT_END))
            self.owner.release_all()

    def forget(self) -> None:
        self.owner.close()


class KafkaReaderBackend:
    """Claims of a reader. From its first claim on, it commits offsets in transactions of its write id."""

    def __init__(self, settings: ClientSettings, lease: Lease | None = None) -> None:
        self._routes = Routes(settings)
        self.owner = KafkaOwner(settings, self._routes, lease=lease)
        self.owner.on_lost = self._lost
        self._fenced: Fenced | None = None
        self.on_fenced: Callable[[Fenced], object] = lambda fenced: None
        """Called once after a takeover, on the session's thread or by a commit."""
        self._is_in_doubt = False
        """A request of the last transaction may still be in flight, and must not join the next one."""

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        if self._fenced is not None:
            raise self._fenced.fresh()
        return self.owner.claim(request)

    def check(self) -> None:
        """Raise Fenced after a known takeover."""
        if self._fenced is not None:
            raise self._fenced.fresh()

    def _lost(self) -> None:
        """Report a takeover; runs on the session's thread."""
        if self._fenced is None:
            self._fenced = Fenced(
                "another owner has taken over from this reader", persisted="no", code=ErrorCode.PRODUCER_FENCED
            )
            self.on_fenced(self._fenced)

    def release(self, group: str, names: Sequence[str]) -> None:
        self.owner.release(group, names)

    def interrupt(self) -> None:
        self.owner.interrupt()

    def close(self) -> None:
        with suppress(FencepostError):
            self.owner.release_all()

    def forget(self) -> None:
        self.owner.close()
        self._routes.close()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store a consumer group's offsets. After Fenced they are not stored, unless `persisted` is "unknown"."""
        writing, who = self.owner.writing, self.owner.identity
        if self._fenced is not None:
            raise self._fenced.fresh()
        if who is None:
            raise FencepostError("the reader owns nothing yet: call own first")
        doubts: int | None = None
        before = writing.doubts
        is_in_doubt = True  # until the end is reached: Ctrl-C may interrupt a step
        try:
            if self._is_in_doubt:
                who, self._is_in_doubt = self.owner.renew(), False
            writing.add_offsets(who, group, {partition: Offset(offset) for partition, offset in offsets.items()})
            doubts = writing.doubts  # only a commit whose answer was lost may have taken effect
            writing.end(who, commit=True)
            is_in_doubt = False
        except FencepostError as error:
            persisted: Persisted = "no" if doubts in (None, writing.doubts) else "unknown"
            taken = error if error.code in NAME_TAKEN else self._abort(who)
            if taken is None:
                is_in_doubt = False
                raise
            self._fenced = Fenced(
                "another owner has taken over from this reader, or a commit took longer than the transaction timeout",
                persisted=persisted,
                code=taken.code,
            )
            self.on_fenced(self._fenced)
            raise self._fenced.fresh() from error
        finally:
            self._is_in_doubt |= is_in_doubt or writing.doubts != before

    def _abort(self, who: Identity) -> FencepostError | None:
        """Abort, and return the coordinator's error if it says that the name was taken. The group's coordinator only
        says that an epoch is stale, which a node that hung says, too: the transaction's decides."""
        try:
            self.owner.writing.end(who, commit=False)
        except FencepostError as error:
            return error if error.code in NAME_TAKEN else None
        return None


def _nothing() -> None:
    """Ignore the loss."""

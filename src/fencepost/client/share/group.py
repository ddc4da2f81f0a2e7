"""A reader's place in its group: the thread that keeps it, and what the reader and a transactional consumer ask of it.

The rules are `core/groups/membership.py`. Here is the I/O: one thread sends the member's requests, whatever the program
does. The program's thread calls everything else. What another thread has learned, the program hears in its next call of
the reader; only `on_change` is called at once.

The seam for a consumer that commits in transactions (records and offsets, or nothing):

    metadata()            group, member id, epoch (or generation) and instance id, for TxnOffsetCommit (KIP-447). Raises
                          if the member has lost what it held. Take it after `check`
    check(partitions)     ask the coordinator now, and wait: raises PartitionsLost (or TooSlow) if this is no member any
                          more, or if one of the partitions was lost since they were handed out, even if it came back.
                          Call it before a transaction commits
    may_commit(partition) the same without asking: what is known so far
    is_losing(partitions) whether a revocation or a loss of one of them is known: work on them is in vain, or about to
                          end. Any thread may ask
    on_change             called on the member's thread after every answer, to look at `is_losing`: it must not block
    reader.rewind()       forget the positions, and go on at the committed offsets. Those are always fetched with
                          RequireStable, so an undecided transaction is waited for
    take_event, released  the events of `core/groups/holding.py`, in their order. The reader takes them in `poll`, so
                          nothing is released between two polls: end the transaction before the next one
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.share.committing import OffsetCommit
from fencepost.client.share.group_wire import MemberWire, TopicIds, consumer_session, count_partitions
from fencepost.client.transactions.coordinator import ConsumerGroupMetadata
from fencepost.clock import Clock
from fencepost.core.groups.holding import Event, MemberSettings, Named, ToRevoke
from fencepost.core.groups.membership import GroupProtocol, Identity, Membership
from fencepost.errors import ErrorCode, FencepostError, PartitionsLost, ServerError, TimedOut, Unreachable
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key

log = logging.getLogger("fencepost.reader")

OnPartitions: TypeAlias = Callable[[frozenset[TopicPartition]], object]
"""Called with the partitions that were assigned, revoked or lost."""

_LONGEST_BEAT: Final = 1.0
"""Seconds. A rebalance is as slow as the heartbeats: with them the coordinator tells what it wants."""
_LONGEST_BEAT_OF_OURS: Final = 0.25
_PATIENCE_WITH_COORDINATOR: Final = 3.0
"""Seconds until a coordinator that hangs is given up, and asked for again."""
_SECONDS_TO_LEAVE: Final = 1.0
_LOOK_AGAIN: Final = 0.1
_IN_DOUBT: Final = frozenset(
    {
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""A commit was rejected because of who sent it: a newer epoch may be on its way, or the member was removed."""
_CURED_BY_WAITING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_ID,  # of a topic so new that the coordinator has not heard of it
    }
)


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The user's settings of the membership."""

    group: str
    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...] = ()
    member: str | None = None
    protocol: GroupProtocol | None = None
    processing_timeout: float = 300.0
    session_timeout: float = 45.0
    metadata_max_age: float = 30.0
    patience: float = 60.0

    def subscribed(self, topics: Iterable[str]) -> frozenset[str]:
        """Return those of the existing topics that the user wants; the named ones also if they do not exist."""
        return self.names | matching(self.patterns, topics)


def matching(patterns: Iterable[re.Pattern[str]], topics: Iterable[str]) -> frozenset[str]:
    """Return the topics whose whole name matches a pattern. The cluster's own topics never do."""
    return frozenset(
        topic for topic in topics if not topic.startswith("__") and any(each.fullmatch(topic) for each in patterns)
    )


class GroupMember:
    def __init__(self, settings: ClientSettings, options: GroupOptions, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake`: interrupts the program's thread while it waits for records."""
        self._settings = settings
        self._options = options
        self._clock = clock
        self._wake = wake
        self.on_change: Callable[[], None] = _nothing
        patient = min(settings.request_timeout, _PATIENCE_WITH_COORDINATOR)
        self._routes = Routes(
            replace(settings, request_timeout=patient, connect_timeout=min(settings.connect_timeout, patient))
        )
        self._ids = TopicIds(self._routes)
        self._wire = MemberWire(self._routes, options.group, self._ids)
        self._commits = Routes(settings)
        # Guards the membership. Reentrant: a signal handler may ask while its thread is in here.
        self._state = threading.Condition(threading.RLock())
        self._is_closed = False
        self._heard_from_coordinator = clock.monotonic()
        self._trouble: FencepostError | None = None
        self._membership = self._make()
        self.lease_end = -float("inf")
        """Copies for the program's thread, which looks at them with every record."""
        self.needs_program = False
        self._thread = threading.Thread(target=self._run, name="fencepost-group", daemon=True)
        self._watching = threading.Thread(target=self._watch_topics, name="fencepost-topics", daemon=True)

    def _make(self) -> Membership:
        options = self._options
        channel = self._routes.any()
        protocol = options.protocol
        if protocol is None:
            protocol = "consumer" if channel.offers(Key.CONSUMER_GROUP_HEARTBEAT) else "cooperative"
        session: float | None = options.session_timeout
        if protocol == "consumer":
            session = consumer_session(self._routes, options.group)
        settings = MemberSettings(
            options.group,
            self._topics_now(),
            options.member,
            processing_timeout=options.processing_timeout,
            session=session,
            longest_beat=_LONGEST_BEAT_OF_OURS if channel.offers(Key.OWN) else _LONGEST_BEAT,
        )
        return Membership(
            settings,
            str(uuid.uuid4()),
            protocol,
            fixed=options.protocol is not None,
            patience=options.patience,
            backoff=self._settings.retry_backoff,
        )

    def begin(self) -> None:
        self._membership.leave_to_program(self._clock.monotonic())
        self._thread.start()
        self._watching.start()

    # --- the program's side ---

    @property
    def assignment(self) -> Named:
        with self._state:
            return self._membership.holding.readable

    @property
    def member_id(self) -> str:
        with self._state:
            return self._membership.identity.member_id

    @property
    def protocol(self) -> GroupProtocol:
        with self._state:
            return self._membership.protocol

    @property
    def epoch(self) -> int:
        with self._state:
            return self._membership.identity.epoch

    @property
    def is_settled(self) -> bool:
        """True if this is a member and nothing waits for the program."""
        with self._state:
            membership = self._membership
            return membership.is_member and not membership.is_rebalancing and not membership.holding.needs_program

    def enter(self) -> None:
        with self._state:
            self._membership.enter(self._clock.monotonic())
            self._copy()

    def leave_to_program(self) -> None:
        # Without the lock, and with each record: one store, which the thread reads.
        self._membership.busy_since = self._clock.monotonic()

    def may_go_on(self) -> bool:
        """Return whether the program may get one more record of what it is reading; then its time begins anew."""
        now = self._clock.monotonic()
        if self.needs_program or now >= self.lease_end:
            return False
        self._membership.busy_since = now
        return True

    def may_hand_out(self, partition: TopicPartition) -> bool:
        with self._state:
            return self._membership.holding.may_hand_out(partition, self._clock.monotonic())

    def take_event(self) -> Event | None:
        with self._state:
            event = self._membership.holding.take_event()
            self._copy()
            return event

    def released(self, event: ToRevoke) -> None:
        """Tell the coordinator that the program is done with these partitions."""
        with self._state:
            self._membership.holding.released(event)
            self._copy()
            self._state.notify_all()

    def raise_error(self) -> None:
        """Raise what the program must know before it goes on. After TooSlow, the next call joins again."""
        with self._state:
            membership = self._membership
            if membership.error is not None:
                raise membership.error.fresh()
            if membership.too_slow is not None:
                error = membership.too_slow
                membership.forgive()
                self._state.notify_all()
                raise error.fresh()
            now = self._clock.monotonic()
            if now - self._heard_from_coordinator >= self._options.patience and now >= membership.holding.lease_end:
                raise Unreachable(
                    f"the coordinator of group {self._options.group!r} could not be reached for "
                    f"{self._options.patience:g} s: {self._trouble or 'no answer'}"
                )

    # --- committing ---

    def may_commit(self, partition: TopicPartition) -> bool:
        with self._state:
            return self._membership.holding.may_commit(partition)

    def check_held(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PartitionsLost or TooSlow if one of these is lost, as far as known."""
        self._identity(partitions)

    def is_losing(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether one of the partitions is lost, or is to be released."""
        with self._state:
            holding = self._membership.holding
            readable = holding.readable
            return self._clock.monotonic() >= holding.lease_end or any(each not in readable for each in partitions)

    def metadata(self, partitions: Iterable[TopicPartition] = ()) -> ConsumerGroupMetadata:
        """Return as whom to commit offsets of these in a transaction. Raise PartitionsLost if one of them was lost."""
        who = self._identity(partitions)
        return ConsumerGroupMetadata(who.epoch, who.member_id, who.instance_id)

    def check(self, partitions: Iterable[TopicPartition], timeout: float | None = None) -> None:
        """Ask the coordinator whether this is still a member. Raise PartitionsLost if it has lost one of these."""
        wanted, now = list(partitions), self._clock.monotonic()
        deadline = now + (self._settings.request_timeout if timeout is None else timeout)
        with self._state:
            self._membership.want_answer(now)
            self._state.notify_all()
            while True:
                self._check(wanted)
                if self._membership.heard_at > now and not self._membership.is_rebalancing:
                    return
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise TimedOut(f"the coordinator of group {self._options.group!r} did not answer: {self._trouble}")
                self._state.wait(left)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        ids: Mapping[TopicPartition, UUID],
        send: Callable[[OffsetCommit], Any] | None = None,
    ) -> None:
        """Store offsets as this member, except those of deleted topics. Raise PartitionsLost, and store nothing, if one
        of them was lost.

        `ids`: of their topics, as far as known. `send`: sends the request over another connection, the owner's."""
        deadline = self._clock.monotonic() + self._settings.request_timeout
        while offsets:
            commit = OffsetCommit(self._options.group, offsets, self._identity(offsets), ids)
            try:
                refused = commit.refused(self._send_commit(commit) if send is None else send(commit))
                gone = commit.of_gone(refused, self._commits)
            except (Unreachable, TimedOut) as error:
                if keeps_us_out(error) or send is not None or self._clock.monotonic() >= deadline:
                    raise
                refused, gone = {next(iter(offsets)): ErrorCode.COORDINATOR_NOT_AVAILABLE}, set()
            if gone:
                log.warning("%s: the topic was deleted, so the position in it is not stored", _listed(gone))
                offsets = {partition: offset for partition, offset in offsets.items() if partition not in gone}
            left = [(partition, code) for partition, code in refused.items() if partition not in gone]
            if not left:
                return
            partition, code = left[0]
            if code in _IN_DOUBT and self._clock.monotonic() < deadline:
                self.check(offsets, max(_LOOK_AGAIN, deadline - self._clock.monotonic()))
            elif code not in _CURED_BY_WAITING or self._clock.monotonic() >= deadline:
                raise_for(code, f"storing {partition} for {self._options.group!r}")
            with self._state:
                self._state.wait(_LOOK_AGAIN)

    def _send_commit(self, commit: OffsetCommit) -> Any:
        channel = self._commits.to(self._commits.coordinator(self._options.group))
        return channel.request(Key.OFFSET_COMMIT, commit.fields, at_most=commit.newest).message

    def _identity(self, partitions: Iterable[TopicPartition]) -> Identity:
        with self._state:
            self._check(partitions)
            return self._membership.identity

    def _check(self, partitions: Iterable[TopicPartition]) -> None:
        membership = self._membership
        membership.judge(self._clock.monotonic())
        if membership.error is not None:
            raise membership.error.fresh()
        if membership.too_slow is not None:
            raise membership.too_slow.fresh()
        lost = sorted(each for each in partitions if not membership.holding.may_commit(each))
        if lost:
            error = PartitionsLost(
                f"{_listed(lost)}: this reader no longer holds it, so nothing was committed: another "
                "member of the group reads it, or will"
            )
            error.partitions = tuple(lost)
            raise error

    # --- closing ---

    def close(self) -> None:
        """Leave the group. If the coordinator does not answer soon, the session ends by time."""
        with self._state:
            if self._is_closed:
                return
            self._is_closed = True
            last = self._membership.leaving(self._clock.monotonic())
            self._copy()
            self._state.notify_all()
        self._routes.close()
        self._commits.close()
        if last is not None:
            settings = replace(
                self._settings,
                request_timeout=min(_SECONDS_TO_LEAVE, self._settings.request_timeout),
                connect_timeout=min(_SECONDS_TO_LEAVE, self._settings.connect_timeout),
            )
            with Routes(settings) as routes:
                try:
                    MemberWire(routes, self._options.group, self._ids).carry_out(last)
                except FencepostError as error:
                    log.debug("leaving group %s: %s", self._options.group, error)

    def leave_to_parent(self) -> None:
        """In a forked child: the threads and the membership are the parent's."""
        self._state = threading.Condition(threading.RLock())
        self._is_closed = True
        self.needs_program, self.lease_end = True, -float("inf")

    # --- the member's thread ---

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # a bug, but the program must not wait for ever
            log.exception("the membership in group %s ends", self._options.group)
            with self._state:
                self._membership.fail(FencepostError(f"{type(error).__name__}: {error}"))
                self._copy()
            self._wake()
        finally:
            self._routes.close()

    def _turn(self) -> bool:
        """Send one request, or wait for the next. Return False when the reader is closed."""
        with self._state:
            if self._is_closed:
                return False
            membership = self._membership
            now = self._clock.monotonic()
            ask = membership.next(now)
            self._copy()
            if ask is None:
                wait = membership.next_at() - now
                self._state.wait(None if wait == float("inf") else max(0.0, wait))
                return True
        try:
            told = self._wire.carry_out(ask)
        except FencepostError as error:
            self._wire.forget_coordinator()
            with self._state:
                self._trouble = error
                if keeps_us_out(error) or (isinstance(error, ServerError) and not error.retriable):
                    membership.fail(error)
                membership.unanswered(ask, self._clock.monotonic())
                self._copy()
        else:
            with self._state:
                membership.answered(ask, told, self._clock.monotonic())
                self._heard_from_coordinator = self._clock.monotonic()
                self._copy()
                self._state.notify_all()
        self.on_change()
        if self.needs_program:
            self._wake()
        return True

    def _copy(self) -> None:
        holding = self._membership.holding
        self.needs_program = (
            holding.needs_program or self._membership.error is not None or self._membership.too_slow is not None
        )
        renewed = holding.lease_end > self.lease_end
        was_over = renewed and self._clock.monotonic() >= self.lease_end
        self.lease_end = min(holding.lease_end, holding.revoke_by)
        if was_over:
            self._wake()

    # --- topics ---

    def _topics_now(self) -> frozenset[str]:
        if not self._options.patterns:
            return self._options.names
        return self._options.subscribed(topic.name for topic in self._routes.view(None).topics)

    def _watch_topics(self) -> None:
        """Look for topics that match, and for partitions that were added. It may block: nothing waits for it."""
        with Routes(self._settings) as routes:
            while True:
                with self._state:
                    if self._is_closed or self._state.wait_for(lambda: self._is_closed, self._options.metadata_max_age):
                        return
                try:
                    self._look_at_topics(routes)
                except FencepostError as error:
                    log.debug("looking for topics: %s", error)

    def _look_at_topics(self, routes: Routes) -> None:
        if self._options.patterns:
            counts = {topic.name: len(topic.partitions) for topic in routes.view(None).topics if not topic.error_code}
        else:
            counts = count_partitions(routes, self._options.names)
        wanted = self._options.subscribed(counts)
        with self._state:
            self._membership.subscribe(wanted)
            self._membership.saw_partitions({name: count for name, count in counts.items() if name in wanted})
            self._state.notify_all()


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def _nothing() -> None:
    """Do nothing."""

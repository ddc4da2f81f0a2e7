"""Sessions on Apache Kafka, where ownership is not tied to a connection: a consumer group for each claimant.

A claimant with a session is the only member of its own consumer group, named after its write id, and sends heartbeats
from a thread. When it is silent for longer than its session, Kafka's group coordinator removes it, and waiting
claimants find the group empty. One group for all claimants would be simpler, but there every join and leave is a
rebalance, which waits for all members: a paused claimant would hold up all others.

A session does not prevent writes, the fence does. A session only tells who may be replaced. To the owner it is a lease
(`core/own/lease.py`): when that is over, the session ends, so that nobody waits for an owner that has given up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Channel, Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.own.lease import BEATS_PER_SESSION, Lease
from fencepost.errors import ErrorCode, FencepostError, TimedOut
from fencepost.types import Milliseconds
from fencepost.wire.apis import Key

log = logging.getLogger("fencepost.own")

SESSION_PREFIX: Final = "fencepost.own.session."
LONGEST_BEAT: Final = 1.0
"""Seconds, however long the session: with each heartbeat an idle owner checks whether it was replaced."""
SHORTEST_BY_DEFAULT: Final = 6.0
"""Kafka's default group.min.session.timeout.ms, in seconds: used if a broker refuses a shorter session."""
_LONGEST_BY_DEFAULT: Final = 1800.0
_PROTOCOL_TYPE: Final = "fencepost-own"
_PROTOCOL: Final = "alive"
_SHORTEST_WAIT: Final = 1.0
_PATIENCE_WITH_COORDINATOR: Final = 3.0
"""Timeout in seconds, however long the session: if the coordinator hangs, ask again who it is."""
_LOOK_AGAIN: Final = 0.01
_SECONDS_TO_LEAVE: Final = 1.0
_LONGEST_PAUSE: Final = 1.0
_REFUSED_FOR_GOOD: Final = frozenset(
    {
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


def session_group(write_id: str) -> str:
    """Return the consumer group of a claimant."""
    return SESSION_PREFIX + write_id.rpartition(".")[2]


def impatient(settings: ClientSettings, seconds: float) -> ClientSettings:
    """Return settings with short timeouts, for repeated requests that must not wait long for a hanging broker."""
    longest = max(_SHORTEST_WAIT, seconds)
    return replace(
        settings,
        request_timeout=min(settings.request_timeout, longest),
        connect_timeout=min(settings.connect_timeout, longest),
    )


class Liveness:
    """Asks the group coordinators which claimants are alive. Not thread-safe."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._channels: dict[str, Channel] = {}
        """The coordinators by write id, while they answer."""

    def gone(self, write_ids: Iterable[str]) -> set[str]:
        """Return those of `write_ids` whose session is over. Without an answer a claimant counts as alive."""
        return {write_id for write_id, is_there in self.look(write_ids).items() if not is_there}

    def look(self, write_ids: Iterable[str]) -> dict[str, bool]:
        """Return whether each claimant is alive, as far as the coordinators answer."""
        by_channel: dict[Channel, list[str]] = {}
        for write_id in write_ids:
            try:
                by_channel.setdefault(self._channel(write_id), []).append(write_id)
            except FencepostError as error:
                log.debug("no coordinator for the session of %s: %s", write_id, error)
        found: dict[str, bool] = {}
        for channel, asked in by_channel.items():
            try:
                found |= self._look_at(channel, asked)
            except FencepostError as error:
                log.debug("%s does not say who is there: %s", channel.address, error)
                for write_id in asked:
                    self._channels.pop(write_id, None)
        return found

    def _channel(self, write_id: str) -> Channel:
        channel = self._channels.get(write_id)
        if channel is None:
            channel = self._channels[write_id] = self._routes.to(self._routes.coordinator(session_group(write_id)))
        return channel

    def _look_at(self, channel: Channel, write_ids: list[str]) -> dict[str, bool]:
        groups = {session_group(write_id): write_id for write_id in write_ids}
        fields = {"groups": list(groups), "include_authorized_operations": False}
        found: dict[str, bool] = {}
        for group in channel.request(Key.DESCRIBE_GROUPS, fields).message.groups:
            write_id, code = groups[group.group_id], ErrorCode.of(group.error_code)
            if code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                found[write_id] = code is ErrorCode.NONE and bool(group.members)
            else:
                log.debug("the session of %s: %s", write_id, code.name)
                self._channels.pop(write_id, None)
        return found


class ClaimantSession:
    """A claimant's group membership, and the thread that sends its heartbeats."""

    def __init__(
        self,
        settings: ClientSettings,
        write_id: str,
        seconds: float,
        on_beat: Callable[[], None],
        patience: float,
        lease: Lease,
    ) -> None:
        self.seconds = seconds
        """The session timeout, as the coordinator accepted it."""
        self._group = session_group(write_id)
        self._write_id = write_id
        self._routes = Routes(impatient(settings, min(seconds / 2, _PATIENCE_WITH_COORDINATOR)))
        self._channel: Channel | None = None
        """The coordinator, while it answers."""
        self._settings = settings
        self._lease = lease
        self.heard_since = float("-inf")
        """When the newest request was sent that shows the coordinator counts this claimant as alive."""
        self._joins_since = float("-inf")
        self._must_join = False
        self._on_beat = on_beat
        self._patience = patience
        self._member = ""
        self._generation = -1
        self._over = threading.Event()
        self._refused: FencepostError | None = None
        self._thread = threading.Thread(target=self._run, name="fencepost-session", daemon=True)
        self._looking: threading.Thread | None = None

    @property
    def milliseconds(self) -> Milliseconds:
        return max(1, round(self.seconds * 1000))

    def begin(self) -> None:
        """Start the thread, and return when the coordinator counts this claimant as alive. The answer to the first
        JoinGroup may come later (group.initial.rebalance.delay.ms)."""
        self._thread.start()
        deadline = time.monotonic() + self._patience
        with Routes(impatient(self._settings, _SHORTEST_WAIT)) as routes:
            liveness = Liveness(routes)
            while not self._is_counted(liveness):
                if self._refused is not None:
                    raise self._refused.fresh()
                if time.monotonic() > deadline:
                    raise TimedOut(f"no coordinator took on the session of {self._write_id} in {self._patience:g} s")
                self._over.wait(_LOOK_AGAIN)  # the state of another process: there is no event to await

    def _is_counted(self, liveness: Liveness) -> bool:
        if self.heard_since == float("-inf") and liveness.look([self._write_id]).get(self._write_id, False):
            if self.seconds < SHORTEST_BY_DEFAULT:
                return False  # the answer to JoinGroup may take longer than this session
            # A member counts as alive at least for a session after its JoinGroup, answered or not.
            self.heard_since = max(self.heard_since, self._joins_since)
        return self.heard_since != float("-inf")

    def shorten(self, seconds: float) -> None:
        """Use a shorter session from the next heartbeat on, without leaving the group in between."""
        self.seconds = seconds
        self._must_join = True

    def wait_until_heard(self, patience: float) -> bool:
        """Wait until less than half of the session has passed since the newest answered heartbeat was sent. Return
        False if the time is over first."""
        deadline = time.monotonic() + patience
        while time.monotonic() >= self.heard_since + self.seconds / 2:
            if time.monotonic() > deadline or self._refused is not None:
                return False
            self._over.wait(_LOOK_AGAIN)
        return True

    def _heard(self, sent_at: float) -> None:
        self.heard_since = sent_at
        self._lease.renew(sent_at)

    def _is_lost(self) -> bool:
        return self._over.is_set() or self._lease.is_over(time.monotonic())

    def close(self) -> None:
        """Leave the group, so that others need not wait for the end of the session. If the coordinator does not answer,
        return after a second; the thread leaves when it can."""
        self._over.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_TO_LEAVE)

    # --- the thread ---

    def _run(self) -> None:
        with self._routes:
            self._live()
            try:
                if self._member:
                    self._leave()
            except FencepostError as error:
                log.debug("the session of %s ends by time: %s", self._write_id, error)

    def _live(self) -> None:
        pauses = self._pauses()
        while not self._is_lost():
            try:
                self._must_join = False
                self._join()
                pauses = self._pauses()
                self._stay()
            except FencepostError as error:
                self._channel = None
                if error.code in _REFUSED_FOR_GOOD or keeps_us_out(error):
                    if self._takes_another_timeout(error):
                        continue
                    self._refused = error
                    return
                log.debug("the session of %s: %s", self._write_id, error)
                pauses.wait()
            except Exception:
                log.exception("the session of %s ends", self._write_id)
                return

    def _pauses(self) -> Backoff:
        return Backoff(self._settings.retry_backoff, _LONGEST_PAUSE, sleep=self._over.wait)

    def _takes_another_timeout(self, error: FencepostError) -> bool:
        if error.code is not ErrorCode.INVALID_SESSION_TIMEOUT:
            return False
        possible = min(max(self.seconds, SHORTEST_BY_DEFAULT), _LONGEST_BY_DEFAULT)
        if possible == self.seconds:
            return False
        log.warning(
            "the broker accepts no session of %g s (group.min.session.timeout.ms, group.max.session.timeout.ms): "
            "using %g s",
            self.seconds,
            possible,
        )
        self.seconds = possible
        return True

    def _join(self) -> None:
        fields = {
            "group_id": self._group,
            "session_timeout": self.milliseconds,
            "rebalance_timeout": self.milliseconds,
            "member_id": self._member,
            "group_instance_id": None,
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [{"name": _PROTOCOL, "metadata": b""}],
            "reason": None,
        }
        if self._joins_since == float("-inf"):  # the first of several that may not be answered
            self._joins_since = time.monotonic()
        if self._lease.session:
            self._lease.ask(time.monotonic(), self.seconds)  # it may be shorter than before
        answer = self._ask(Key.JOIN_GROUP, fields)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member = answer.member_id
            self._joins_since = time.monotonic()
            answer = self._ask(Key.JOIN_GROUP, {**fields, "member_id": self._member})
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member = ""
        raise_for(answer.error_code, f"joining {self._group!r}")
        self._member, self._generation = answer.member_id, answer.generation_id
        answer = self._ask(
            Key.SYNC_GROUP,
            {
                **self._who(),
                "protocol_type": _PROTOCOL_TYPE,
                "protocol_name": _PROTOCOL,
                "assignments": [{"member_id": self._member, "assignment": b""}],
            },
        )
        self._check(answer.error_code)

    def _stay(self) -> None:
        """Send heartbeats until the session is closed; raise if the coordinator removes it or is unreachable."""
        while not self._must_join:
            sent_at = time.monotonic()
            self._check(self._ask(Key.HEARTBEAT, self._who()).error_code)
            self._heard(sent_at)
            if self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(target=self._look, name="fencepost-session-look", daemon=True)
                self._looking.start()
            if self._over.wait(min(self.seconds / BEATS_PER_SESSION, LONGEST_BEAT)) or self._is_lost():
                return

    def _look(self) -> None:
        """Check for a takeover on a short-lived thread: a hanging transaction coordinator must not cost the session."""
        try:
            self._on_beat()
        except FencepostError as error:
            log.debug("looking after what is owned: %s", error)

    def _leave(self) -> None:
        leaving = {"member_id": self._member, "group_instance_id": None, "reason": None}
        self._ask(Key.LEAVE_GROUP, {"group_id": self._group, "member_id": self._member, "members": [leaving]})

    def _check(self, code: int) -> None:
        if ErrorCode.of(code) is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member = ""
        raise_for(code, f"the session of {self._write_id}")

    def _who(self) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "generation_id": self._generation,
            "member_id": self._member,
            "group_instance_id": None,
        }

    def _ask(self, key: Key, fields: dict[str, Any]) -> Any:
        if self._channel is None:
            self._channel = self._routes.to(self._routes.coordinator(self._group))
        return self._channel.request(key, fields).message

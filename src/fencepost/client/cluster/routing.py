"""The choice of the broker to ask: any, the controller, a partition's leader, a group's coordinator.

Only the open channels are kept: administrative requests are rare, so a fresh answer to "who leads?" is worth more than
a saved round trip. A question that any broker can answer goes to the least loaded one, and to another one when that is
slow (`whoever`), so a hanging broker delays nobody. Errors that waiting cures (an election, a loading coordinator) are
retried until the request timeout; all others are raised at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import Channel, Reply, Silent, raise_for
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.metadata import BrokerNode, question
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.broker_choice import Hedge
from fencepost.errors import LEADER_MOVED, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.wire.apis import Key

T = TypeVar("T")

_SEVERAL_KEYS: Final = 4
"""From this version on FindCoordinator takes several keys."""

# Not all of Kafka's retriable codes: an unknown topic, for example, is an answer for the caller.
_CURED_BY_WAITING: Final = LEADER_MOVED | frozenset(
    {
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ClusterView(NamedTuple):
    """The parts of a Metadata answer that routing needs."""

    brokers: Mapping[int, BrokerNode]
    controller: int
    cluster_id: str | None
    topics: tuple[Any, ...]
    """kio's topics, with their error codes."""


class Routes(Closing):
    """The channels to one cluster. Threads may share them."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.on_silent: Silent | None = None
        # Channels by address; setdefault on a dict is atomic, and a channel that loses the race was never connected.
        self._channels: dict[Address, Channel] = {}
        self._answered: tuple[Address, ...] = ()
        """The server that answered last, if any, so that a silent one is not asked first again and again."""
        self._others: tuple[Address, ...] = ()
        """The brokers that metadata has named: a user may give only one of them."""
        self._is_closed = False

    def close(self) -> None:
        """Close all channels. Later requests raise Closed, also that of a thread that has just chosen its broker."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            channel.close()

    def is_asking(self) -> bool:
        """Return whether this thread is in a request already: it is a signal handler's."""
        return bool(self._channels) and any(channel.is_mine for channel in list(self._channels.values()))

    def channel(self, address: Address) -> Channel:
        known = self._channels.get(address)
        if known is None:
            fresh = Channel(address, self.settings, on_silent=self._silent)
            known = self._channels.setdefault(address, fresh)
            if self._is_closed:  # perhaps since `close` looked
                known.close()
        return known

    def _silent(self, address: Address, error: TimedOut) -> None:
        if self.on_silent is not None:
            self.on_silent(address, error)

    def to(self, broker: BrokerNode) -> Channel:
        return self.channel(Address(broker.host, broker.port))

    def any(self) -> Channel:
        """Return a connected channel: to the server that answered last, or to the first that answers."""

        def connected(channel: Channel) -> Channel:
            channel.versions()
            return channel

        return self.whoever(connected)

    def whoever(self, call: Callable[[Channel], T], first: Iterable[Address] = ()) -> T:
        """Make a call that changes nothing on the least loaded server, and on another one when that is slow.

        The first answer counts, also an error code. Candidates are `first`, which is preferred, the given servers, and
        all brokers met so far. Raise Unreachable or TimedOut if none of them answers."""
        met = [*self.settings.servers, *self._others, *list(self._channels)]
        candidates = list(dict.fromkeys([*first, *self._answered, *met]))
        if len(candidates) == 1:
            return call(self.channel(candidates[0]))
        outcomes: queue.SimpleQueue[tuple[Address, T | BaseException]] = queue.SimpleQueue()

        def ask(address: Address) -> None:
            channel = self.channel(address)
            try:
                outcomes.put((address, call(channel)))
            except BaseException as error:  # noqa: BLE001 - raised, or ignored, by the thread that waits
                outcomes.put((address, error))

        hedge: Hedge[Address] = Hedge(time.monotonic())
        left = dict.fromkeys(candidates)
        refusals: list[Unreachable | TimedOut] = []
        while True:
            now = time.monotonic()
            chosen = hedge.choose({address: self.channel(address).load for address in left}, now)
            if chosen is not None:
                del left[chosen]
                hedge.asked(chosen, now)
                _on_its_own_thread(ask, chosen)
            elif not hedge.is_waiting:
                raise _nobody_answered(candidates, refusals)
            try:
                patience = max(0.0, hedge.next_at - now) if left else None
                address, outcome = outcomes.get(timeout=patience)
            except queue.Empty:
                continue
            if isinstance(outcome, Unreachable | TimedOut):
                refusals.append(outcome)
                hedge.failed(address, time.monotonic())
                continue
            self._answered = (address,)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    def ask(self, key: Key, fields: Mapping[str, Any], *, at_most: int | None = None) -> Reply:
        """Send a request that changes nothing; return the first answer."""
        return self.whoever(lambda channel: channel.request(key, fields, at_most=at_most))

    def view(self, topics: Iterable[str] | None = ()) -> ClusterView:
        """Return the brokers and the given topics (None: all). Never creates a topic."""
        answer = self.ask(Key.METADATA, question(topics)).message
        raise_for(getattr(answer, "error_code", 0), "asking for metadata")
        if len(answer.brokers) > 1:  # the one broker of a cluster is the given server, perhaps by another name
            self._others = tuple(Address(broker.host, broker.port) for broker in answer.brokers)
        return ClusterView(
            {b.node_id: BrokerNode(b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in answer.brokers},
            getattr(answer, "controller_id", -1),
            getattr(answer, "cluster_id", None),
            answer.topics,
        )

    def topic(self, name: str) -> tuple[ClusterView, Any]:
        """Return the metadata of one topic, which must exist."""
        view = self.view([name])
        for topic in view.topics:
            if topic.name == name:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise unknown_topic(name)
                raise_for(topic.error_code, f"topic {name!r}")
                return view, topic
        raise unknown_topic(name)

    def controller(self) -> Channel:
        """Return a channel for creating and deleting topics. With KRaft every broker forwards such requests.

        These requests may not be repeated, so the broker must not hang: if the controller does not answer a small
        request soon, another broker is taken."""
        view = self.view()
        brokers = sorted(view.brokers.values(), key=lambda broker: broker.id != view.controller)
        if len(brokers) == 1:
            return self.to(brokers[0])

        def answering(channel: Channel) -> Channel:
            channel.round_trip()
            return channel

        return self.whoever(answering, [Address(broker.host, broker.port) for broker in brokers])

    def leaders(self, topic: str, partitions: Iterable[int] | None = None) -> dict[BrokerNode, list[int]]:
        """Return each leader with those of the given partitions (None: all) that it leads."""
        view, found = self.topic(topic)
        by_index = {partition.partition_index: partition for partition in found.partitions}
        led: dict[BrokerNode, list[int]] = {}
        for index in sorted(by_index) if partitions is None else partitions:
            if index not in by_index:
                raise ServerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic!r} has no partition {index}, only 0 to {len(by_index) - 1}",
                )
            leader = view.brokers.get(by_index[index].leader_id)
            if leader is None:
                raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{index} has no leader at the moment")
            led.setdefault(leader, []).append(index)
        return led

    def coordinator(self, group: str) -> BrokerNode:
        """Return the coordinator of a group."""
        return self._coordinator(group, 0, f"group {group!r}")

    def transaction_coordinator(self, name: str) -> BrokerNode:
        """Return the coordinator of a transactional id."""
        return self._coordinator(name, 1, f"transactional id {name!r}")

    def transaction_coordinators(self, names: Sequence[str]) -> dict[str, BrokerNode]:
        """Return the coordinators of transactional ids, with one request if the server takes several."""
        answer = self.ask(Key.FIND_COORDINATOR, {"key": names[0], "key_type": 1, "coordinator_keys": list(names)})
        if answer.version < _SEVERAL_KEYS:
            return {name: self.transaction_coordinator(name) for name in names}
        for found in answer.message.coordinators:
            raise_for(found.error_code, f"finding the coordinator of {found.key!r}", found.error_message)
        return {found.key: BrokerNode(found.node_id, found.host, found.port) for found in answer.message.coordinators}

    def _coordinator(self, key: str, key_type: int, what: str) -> BrokerNode:
        # Versions from 4 on take several keys, older ones a single key: the fields of both are given.
        answer = self.ask(Key.FIND_COORDINATOR, {"key": key, "key_type": key_type, "coordinator_keys": [key]})
        found = answer.message.coordinators[0] if answer.version >= _SEVERAL_KEYS else answer.message
        message = getattr(found, "error_message", None)
        raise_for(found.error_code, f"finding the coordinator of {what}", message)
        return BrokerNode(found.node_id, found.host, found.port)

    def retried(self, call: Callable[[], T]) -> T:
        """Repeat `call` while it fails with an error that waiting cures, until the request timeout."""
        pauses = Backoff(self.settings.retry_backoff, self.settings.retry_backoff, self.settings.request_timeout)
        while True:
            try:
                return call()
            except ServerError as error:
                if error.code not in _CURED_BY_WAITING or not pauses.wait():
                    raise


def _on_its_own_thread(ask: Callable[[Address], None], address: Address) -> None:
    """Ask a broker on a short-lived thread, because a channel blocks. The request timeout, or `close`, ends it."""
    try:
        threading.Thread(target=ask, args=(address,), daemon=True, name="fencepost-ask").start()
    except RuntimeError:  # the interpreter is shutting down and starts no more threads
        ask(address)


def _nobody_answered(tried: list[Address], refusals: list[Unreachable | TimedOut]) -> FencepostError:
    kept_out = [error for error in refusals if keeps_us_out(error)]
    if kept_out or len(refusals) == 1:
        return (kept_out or refusals)[0]
    return Unreachable(f"none of {', '.join(map(str, tried))} answered; the first error: {refusals[0]}")


def unknown_topic(name: str) -> ServerError:
    return ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")

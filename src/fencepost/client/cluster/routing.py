"""The choice of the broker to ask: any, the controller, a partition's leader, a group's coordinator.

Administrative requests are rare, so a fresh answer to "who leads?" is worth more than a saved round trip. A question
that any broker can answer goes to the one that answered last, and to another one when that is slow (`ask`): a hanging
broker delays nobody. Errors that waiting cures (an election, a loading coordinator) are retried until the request
timeout; all others are raised at once.

Threads may share `Routes`: each request is made on a loop (`blocking.py`) that no other thread uses meanwhile. Loops
are kept for the next request, with their connections.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import FOREVER, Loop, Reply, Request, raise_for
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.forking import tell_after_fork
from fencepost.client.cluster.handshake import INTRODUCTION, Versions, keeps_us_out
from fencepost.client.cluster.metadata import BrokerNode, question
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.broker_choice import Hedge
from fencepost.errors import LEADER_MOVED, Closed, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.wire.apis import Key

T = TypeVar("T")
Silent: TypeAlias = Callable[[Address, TimedOut], None]
"""Called with a server that did not answer in time, on the thread that waited."""

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


@dataclass(frozen=True, slots=True)
class Channel:
    """One broker, to be asked by the threads of a client."""

    routes: Routes
    address: Address

    def request(self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, longer: float = 0.0) -> Reply:
        """Ask in the newest version that both sides speak (and not above `at_most`), and wait for the answer.

        `longer`: seconds in addition to the request timeout, for a request that the server holds back."""
        timeout = self.routes.settings.request_timeout + longer
        return self._ask(Request.of(key, fields, at_most=at_most, timeout=timeout)).reply()

    def versions(self) -> Versions:
        """Return the APIs that the server offers: key → (lowest, highest version)."""
        return self._ask(Request()).versions

    def offers(self, key: int) -> bool:
        return key in self.versions()

    def _ask(self, request: Request) -> Request:
        self.routes.run(lambda loop: loop.ask(self.address, request))
        if request.error is not None:
            if isinstance(request.error, TimedOut):
                self.routes.on_silent(self.address, request.error)
            raise request.error
        return request


class Routes(Closing):
    """The ways to the brokers of one cluster. Threads may share them."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.on_silent: Silent = _tell_nobody
        # For all threads without a lock: single operations of a deque or a dict are atomic.
        self._idle: deque[Loop] = deque()
        self._busy: dict[Loop, int] = {}
        """The loops in use, with the threads that use them."""
        self._is_closed = False
        self._answered: tuple[Address, ...] = ()
        """The server that answered last, if any, so that a silent one is not asked first again and again."""
        self._others: tuple[Address, ...] = ()
        """The brokers that metadata has named: a user may give only one of them."""
        tell_after_fork(self)

    def close(self) -> None:
        """Close the connections, for good. Requests of other threads fail, and later ones raise Closed."""
        self._is_closed = True
        for loop in list(self._busy):
            loop.stop()
        self._close_idle()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the connections to {self.settings.addresses} were closed by this client")

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:  # another thread was quicker
                return

    def after_fork(self) -> None:
        """Close the copies of the parent's sockets in a forked child."""
        for loop in [*self._idle, *self._busy]:
            loop.forget_sockets()
        self._idle.clear()
        self._busy.clear()

    def is_asking(self) -> bool:
        """Return whether this thread is in a request already: it is a signal handler's."""
        return threading.get_ident() in self._busy.values()

    def run(self, work: Callable[[Loop], T]) -> T:
        """Do something with connections that no other thread uses meanwhile."""
        self._check_open()
        try:
            loop = self._idle.pop()
        except IndexError:
            loop = Loop(self.settings)
        self._busy[loop] = threading.get_ident()
        try:
            outcome = work(loop)
        except BaseException:  # KeyboardInterrupt too: nobody knows what is left to be read or written
            loop.close()
            raise
        finally:
            self._busy.pop(loop, None)
        if not loop.has_connections:
            loop.close()
            return outcome
        self._idle.append(loop)
        if self._is_closed:
            self._close_idle()
        return outcome

    def channel(self, address: Address) -> Channel:
        return Channel(self, address)

    def to(self, broker: BrokerNode) -> Channel:
        return self.channel(Address(broker.host, broker.port))

    def any(self) -> Channel:
        """Return the server that answered last, or the first that answers."""
        return self.channel(self._whoever(Request)[0])

    def ask(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, first: Iterable[Address] = ()
    ) -> Reply:
        """Put a question that changes nothing to one server, and to another one when that is slow.

        The first answer counts, also an error code. Candidates are `first`, which is preferred, the given servers, and
        all brokers met so far. Raise Unreachable or TimedOut if none of them answers."""
        return self._whoever(lambda: Request.of(key, fields, at_most=at_most), first)[1].reply()

    def _whoever(self, make: Callable[[], Request], first: Iterable[Address] = ()) -> tuple[Address, Request]:
        """Return the server that answered first, and the request that it answered."""
        candidates = list(dict.fromkeys([*first, *self._answered, *self.settings.servers, *self._others]))

        def hedged(loop: Loop) -> tuple[Address, Request]:
            hedge: Hedge[Address] = Hedge(time.monotonic())
            left = list(candidates)
            asked: dict[Address, Request] = {}
            refusals: list[Unreachable | TimedOut] = []
            while True:
                now = time.monotonic()
                chosen = hedge.choose({address: loop.load(address) for address in left}, now)
                if chosen is not None:
                    left.remove(chosen)
                    hedge.asked(chosen, now)
                    asked[chosen] = loop.put(chosen, make())
                elif not hedge.is_waiting:
                    raise _nobody_answered(candidates, refusals)
                loop.run_until(
                    lambda: any(request.is_over for request in asked.values()), hedge.next_at if left else FOREVER
                )
                for address, request in list(asked.items()):
                    if not request.is_over:
                        continue
                    if not isinstance(request.error, Unreachable | TimedOut):
                        return address, request
                    del asked[address]
                    refusals.append(request.error)
                    hedge.failed(address, time.monotonic())

        if len(candidates) == 1:
            address, request = candidates[0], make()
            self.run(lambda loop: loop.ask(address, request))
        else:
            address, request = self.run(hedged)
        self._answered = (address,)
        if request.error is not None:
            raise request.error
        return address, request

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
        addresses = [Address(broker.host, broker.port) for broker in brokers]
        return self.channel(self.ask(Key.API_VERSIONS, INTRODUCTION, first=addresses).address)

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


def _tell_nobody(address: Address, error: TimedOut) -> None:
    """Do nothing: no other connection of this client depends on the server."""


def _nobody_answered(tried: list[Address], refusals: list[Unreachable | TimedOut]) -> FencepostError:
    kept_out = [error for error in refusals if keeps_us_out(error)]
    if kept_out or len(refusals) == 1:
        return (kept_out or refusals)[0]
    return Unreachable(f"none of {', '.join(map(str, tried))} answered; the first error: {refusals[0]}")


def unknown_topic(name: str) -> ServerError:
    return ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")

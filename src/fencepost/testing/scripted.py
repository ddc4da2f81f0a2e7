"""A cluster in memory whose answers a test can script: no sockets, no threads, no waiting.

    clock = HandWoundClock()
    cluster = ScriptedCluster(clock, topics={"orders": 2})
    sender = Sender(settings, options, cluster.network(), clock)
    cluster.next(Api.PRODUCE, Fate.CUT)        # appended, then the line goes dead
    …
    cluster.values("orders", 0)                # what is in the log

Left alone it behaves as a Kafka broker does: the same rule for sequences (`core/dedup`), the same error codes. A fate
for the next request of an API, or a function that chooses one for every request, makes it misbehave. Time passes only
in `poll`, and only as far as the next thing that happens.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.client.network import Handler
from fencepost.client.settings import Address
from fencepost.core.dedup import Accept, Batch, Duplicate, Fenced, Forgotten, ProducerTable
from fencepost.core.ownership import Granted, Ownership, Wanted
from fencepost.errors import ErrorCode, FencepostError, Unreachable
from fencepost.kernel import BatchHeader, Buffer, check_batch, decode_batch, stamp_offset
from fencepost.testing.clock import HandWoundClock
from fencepost.types import Generation, Offset
from fencepost.wire import hot, messages
from fencepost.wire.frame import FrameReader, read_request_head, response_head

PORT: Final = 9092
EARLIEST: Final = -2
DEBUGGER: Final = -2
"""Who asks for offsets under this replica id is told the end of the log, not the high watermark."""


_NO_ANSWER: Final = b""
"""Of a Produce with acks=0; refusing one, a server ends the connection, and a test can say Fate.CUT."""


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    OWN = 10_000
    DESCRIBE_OWNERS = 10_001


VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    Api.PRODUCE: (3, 11),
    Api.FETCH: (4, 12),
    Api.LIST_OFFSETS: (1, 7),
    Api.METADATA: (1, 12),
    Api.FIND_COORDINATOR: (1, 4),
    Api.API_VERSIONS: (0, 3),
    Api.INIT_PRODUCER_ID: (0, 4),
}


class Fate(Enum):
    """What becomes of a request."""

    ANSWER = "answer"
    """Carried out and answered."""
    SWALLOW = "swallow"
    """Carried out, but the answer never comes."""
    CUT = "cut"
    """Carried out, but instead of the answer the connection ends."""
    LOSE = "lose"
    """Not carried out, and the connection ends."""
    IGNORE = "ignore"
    """Not carried out, and never answered: the server is stopped, and the line holds."""
    DUPLICATE = "duplicate"
    """Carried out twice, answered once."""


class Delayed(NamedTuple):
    """Carried out at once, answered after so many seconds."""

    seconds: float


class Late(NamedTuple):
    """The connection ends for the client, who hears nothing more; the server still has what was sent over it, carries
    it out so many seconds later, and only then notices the end."""

    seconds: float


class Refused(NamedTuple):
    """Produce only: not carried out, every partition is answered with this error."""

    code: ErrorCode


OWNING: Final[Mapping[int, tuple[int, int]]] = {Api.OWN: (0, 0), Api.DESCRIBE_OWNERS: (0, 0)}
"""What fencepost's server offers besides."""

Script: TypeAlias = Fate | Delayed | Late | Refused


class Request(NamedTuple):
    node: int
    key: int
    version: int
    message: Any
    """kio's entity, or a `hot.ProduceRequest` or `hot.FetchRequest`."""


class MemoryLog:
    """One partition: batches in a list, and what it knows of its producers."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.producers = ProducerTable()
        self.leader = 0
        self.leader_epoch = 0
        self.max_batch_bytes = 1 << 20
        self.replicated_to: int | None = None
        """What lies behind it is the leader's alone, and readers do not see it; None: everything is replicated."""

    def append(self, data: memoryview) -> tuple[ErrorCode, int]:
        header = check_batch(data)
        if header.size > self.max_batch_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.is_idempotent:
            judged = _judged(header)
            verdict = self.producers.judge(judged)
            match verdict:
                case Accept():
                    self.producers.apply(judged, Offset(self.end), 0)
                case Duplicate(base_offset=offset):
                    return ErrorCode.NONE, offset
                case Fenced():
                    return ErrorCode.INVALID_PRODUCER_EPOCH, -1
                case Forgotten():
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
                case _:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        stored = bytearray(data)
        stamp_offset(stored, self.end, self.leader_epoch)
        self.batches.append(bytes(stored))
        self.end += header.last_offset_delta + 1
        return ErrorCode.NONE, self.end - header.count

    def lose_tail(self, batches: int) -> None:
        """As after an unclean election: the newest batches were never here."""
        kept = self.batches[:-batches]
        self.batches, self.end, self.producers = [], 0, ProducerTable()
        for batch in kept:
            self.append(memoryview(batch))

    @property
    def high_watermark(self) -> int:
        return self.end if self.replicated_to is None else min(self.end, self.replicated_to)

    def read(self, offset: int) -> list[Buffer]:
        return [batch for batch in self.batches if offset < check_batch(batch).next_offset <= self.high_watermark]


def _judged(header: BatchHeader) -> Batch:
    return Batch(
        header.pid,
        header.epoch,
        header.base_sequence,
        header.last_sequence,
        header.count,
        header.crc,
        header.max_timestamp,
    )


class ScriptedCluster:
    def __init__(
        self,
        clock: HandWoundClock,
        *,
        nodes: int = 1,
        topics: Mapping[str, int] | None = None,
        latency: float = 0.001,
        knows_own: bool = False,
    ) -> None:
        """`knows_own`: as fencepost's own server does."""
        self.clock = clock
        self.versions = {**VERSIONS, **OWNING} if knows_own else VERSIONS
        self.ownership: Ownership[ScriptedLink | str] = Ownership()
        self.notices_ends = True
        """Otherwise a connection that ended owns on: its end has not reached the server yet."""
        self.latency = latency
        self.addresses = {node: Address(f"10.0.0.{node + 1}", PORT) for node in range(nodes)}
        self.down: set[int] = set()
        self.keeps_out: dict[int, FencepostError] = {}
        """Nodes that let nobody in, and what they say."""
        self.logs: dict[str, list[MemoryLog]] = {}
        self.hidden: set[str] = set()
        """Topics that metadata answers LEADER_NOT_AVAILABLE for."""
        self.creates_topics = False
        self.choose: Callable[[Request], Script] = lambda request: Fate.ANSWER
        self.seen: list[Request] = []
        """Every request that arrived, in order."""
        self._scripts: defaultdict[int, deque[Script]] = defaultdict(deque)
        self._networks: list[ScriptedNetwork] = []
        self._next_pid = 1000
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    # --- what tests do ---

    def create(self, topic: str, partitions: int) -> None:
        nodes = list(self.addresses)
        logs = [MemoryLog() for _ in range(partitions)]
        for index, log in enumerate(logs):
            log.leader = nodes[index % len(nodes)]
        self.logs[topic] = logs

    def network(self) -> ScriptedNetwork:
        network = ScriptedNetwork(self)
        self._networks.append(network)
        return network

    def next(self, api: Api, *scripts: Script) -> None:
        """The fates of the next requests of this API, one each."""
        self._scripts[api].extend(scripts)

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        log = self.logs[topic][partition]
        log.leader = node
        log.leader_epoch += 1

    def kill(self, node: int) -> None:
        """The broker is gone: its connections end, and nobody can dial it."""
        self.down.add(node)
        for network in self._networks:
            network.cut(self.addresses[node])

    def revive(self, node: int) -> None:
        self.down.discard(node)

    def take_over(self, group: str, *names: str, generation: int = 2**30) -> None:
        """Somebody else claims these; whoever owned one of them is severed."""
        judged = self.ownership.claim("somebody else", group, [Wanted(name, Generation(generation)) for name in names])
        assert isinstance(judged, Granted), judged
        self._sever(judged.severed)

    def _sever(self, owners: Sequence[ScriptedLink | str]) -> None:
        for owner in owners:
            self.ownership.ended(owner)
            if isinstance(owner, ScriptedLink):
                owner.sever()

    def records(self, topic: str, partition: int) -> list[Any]:
        return [record for batch in self.logs[topic][partition].batches for record in decode_batch(batch)]

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        return [record.value for record in self.records(topic, partition)]

    def requests(self, api: Api) -> list[Request]:
        return [request for request in self.seen if request.key == api]

    # --- what brokers do ---

    def receive(self, node: int, frame: bytes, link: ScriptedLink) -> tuple[bytes | None, Script]:
        """The answer to a request (None if it is lost), and the fate that it was dealt."""
        head = read_request_head(frame)
        request = Request(node, head.key, head.version, _decode(head.key, head.version, frame, head.body_at))
        self.seen.append(request)
        scripts = self._scripts[head.key]
        script = scripts.popleft() if scripts else self.choose(request)
        if script in (Fate.LOSE, Fate.IGNORE):
            return None, script
        if isinstance(script, Late) and link.lags_until is None:
            link.lags_until = self.clock.monotonic() + script.seconds
        if link.lags_until is not None:
            link.lag(lambda: self._carry_out(request, Fate.ANSWER, link))
            return None, script
        if script is Fate.DUPLICATE:
            self._carry_out(request, script, link)
        body = self._carry_out(request, script, link)
        if head.key == Api.PRODUCE and request.message.acks == 0:
            return _NO_ANSWER, script
        return response_head(head.key, head.version, head.correlation_id) + body, script

    def _carry_out(self, request: Request, script: Script, link: ScriptedLink) -> bytes:
        key, version, message = request.key, request.version, request.message
        match key:
            case Api.PRODUCE:
                return hot.encode_produce_response(version, self._produce(request, script))
            case Api.FETCH:
                return b"".join(bytes(part) for part in hot.encode_fetch_response(version, self._fetch(request)))
            case Api.API_VERSIONS:
                fields = self._api_versions()
            case Api.METADATA:
                fields = self._metadata(message)
            case Api.INIT_PRODUCER_ID:
                self._next_pid += 1
                fields = {"error_code": 0, "throttle_time": 0, "producer_id": self._next_pid, "producer_epoch": 0}
            case Api.LIST_OFFSETS:
                fields = self._list_offsets(message)
            case Api.OWN:
                fields = self._own(message, link)
            case Api.DESCRIBE_OWNERS:
                fields = self._owners()
            case _:
                raise NotImplementedError(f"API key {key}")
        return messages.encode_response(key, version, fields)

    def _api_versions(self) -> Mapping[str, Any]:
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in self.versions.items()]
        return {"error_code": 0, "api_keys": keys, "throttle_time": 0}

    def _metadata(self, message: Any) -> Mapping[str, Any]:
        names = list(self.logs) if message.topics is None else [topic.name for topic in message.topics]
        brokers = [
            {"node_id": node, "host": address.host, "port": address.port, "rack": None}
            for node, address in self.addresses.items()
            if node not in self.down
        ]
        return {
            "throttle_time": 0,
            "brokers": brokers,
            "cluster_id": "scripted",
            "controller_id": 0,
            "topics": [self._describe(name) for name in names],
        }

    def _describe(self, name: str) -> Mapping[str, Any]:
        code = ErrorCode.NONE
        if name in self.hidden:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        elif name not in self.logs:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if self.creates_topics:
                self.create(name, 1)
                code = ErrorCode.LEADER_NOT_AVAILABLE
        logs = self.logs[name] if code is ErrorCode.NONE else []
        partitions = [
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": log.leader if log.leader not in self.down else -1,
                "leader_epoch": log.leader_epoch,
                "replica_nodes": [log.leader],
                "isr_nodes": [log.leader],
                "offline_replicas": [],
            }
            for index, log in enumerate(logs)
        ]
        return {
            "error_code": int(code),
            "name": name,
            "topic_id": None,
            "is_internal": False,
            "partitions": partitions,
            "topic_authorized_operations": 0,
        }

    def _produce(self, request: Request, script: Script) -> hot.ProduceResponse:
        topics = []
        for topic in request.message.topics:
            partitions = []
            for part in topic.partitions:
                log = self._led(request.node, topic.name, part.index)
                offset = -1
                if isinstance(script, Refused):
                    code = script.code
                elif log is None:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    code, offset = log.append(part.records)
                partitions.append(hot.ProducedPartition(part.index, int(code), offset))
            topics.append(hot.ProducedTopic(topic.name, None, partitions))
        return hot.ProduceResponse(topics)

    def _fetch(self, request: Request) -> hot.FetchResponse:
        topics = []
        for topic in request.message.topics:
            partitions = []
            for part in topic.partitions:
                log = self._led(request.node, topic.name, part.index)
                if log is None:
                    partitions.append(hot.FetchedPartition(part.index, int(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
                elif part.fetch_offset > log.end:
                    partitions.append(hot.FetchedPartition(part.index, int(ErrorCode.OFFSET_OUT_OF_RANGE)))
                else:
                    records: Sequence[Buffer] = log.read(part.fetch_offset)
                    seen = log.high_watermark
                    partitions.append(hot.FetchedPartition(part.index, 0, seen, seen, 0, [], records))
            topics.append(hot.FetchedTopic(topic.name, None, partitions))
        return hot.FetchResponse(topics)

    def _list_offsets(self, message: Any) -> Mapping[str, Any]:
        topics = []
        for topic in message.topics:
            partitions = [
                {
                    "partition_index": part.partition_index,
                    "error_code": 0,
                    "timestamp": -1,
                    "offset": self._offset(message.replica_id, topic.name, part),
                    "leader_epoch": 0,
                }
                for part in topic.partitions
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        return {"throttle_time": 0, "topics": topics}

    def _own(self, message: Any, link: ScriptedLink) -> Mapping[str, Any]:
        """Waiting is the test's affair: `Delayed` holds the answer back."""
        self.ownership.release(link, message.group, message.release)
        wanted = [
            Wanted(each.name, Generation(each.generation), None if each.after_token < 0 else each.after_token)
            for each in message.resources
        ]
        judged = self.ownership.claim(link, message.group, wanted)
        if isinstance(judged, Granted):
            self._sever(judged.severed)
        code = ErrorCode.NONE if isinstance(judged, Granted) else ErrorCode.ILLEGAL_GENERATION
        rows = [
            {"name": row.name, "error_code": int(code), "generation": row.generation, "token": row.token}
            for row in judged.rows
        ]
        return {"error_code": int(code), "error_message": None, "resources": rows}

    def _owners(self) -> Mapping[str, Any]:
        owners = [
            {
                "group": group,
                "name": name,
                "generation": holding.generation,
                "token": holding.token,
                "since_ms": 0,
                "address": "",
                "client_id": "",
            }
            for group, name, holding in self.ownership
        ]
        return {"error_code": 0, "owners": owners, "waiting": []}

    def _offset(self, asker: int, topic: str, part: Any) -> int:
        log: MemoryLog = self.logs[topic][part.partition_index]
        if _timestamp(part) == EARLIEST:
            return 0
        return log.end if asker == DEBUGGER else log.high_watermark

    def _led(self, node: int, topic: str | None, partition: int) -> MemoryLog | None:
        logs = self.logs.get(topic or "", [])
        if partition < len(logs) and logs[partition].leader == node:
            return logs[partition]
        return None


def _timestamp(partition: Any) -> int:
    return int(partition.timestamp)


def _decode(key: int, version: int, frame: bytes, at: int) -> Any:
    if key == Api.PRODUCE:
        return hot.decode_produce_request(version, frame, at)
    if key == Api.FETCH:
        return hot.decode_fetch_request(version, frame, at)
    return messages.decode_request(key, version, frame, at)


class ScriptedLink:
    """A connection to one scripted broker."""

    def __init__(self, network: ScriptedNetwork, address: Address, handler: Handler) -> None:
        self.address = address
        self.written = 0
        self.queued = 0
        self._network = network
        self._handler: Handler | None = handler
        self._frames = FrameReader()
        self.answers_until = float("-inf")
        """When the newest answer is due: none overtakes another."""
        self.is_mute = False
        """An answer was swallowed, so none comes after it, or the end is near."""
        self.is_severed = False
        self.lags_until: float | None = None
        """Its end has not reached the server yet."""

    def write(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(bytes(part) for part in parts)
        self.queued += len(data)
        self.written += len(data)
        for frame in self._frames.feed(data):
            self._network.carry(self, frame)

    def close(self) -> None:
        self._handler = None
        self._network.ended(self)

    def sever(self) -> None:
        """By the server: what is on its way to the client is thrown away, and what comes from it is not heard."""
        self.is_mute = self.is_severed = True
        self._network.sever(self)

    def lag(self, carry_out: Callable[[], object]) -> None:
        self._network.lag(self, carry_out)

    @property
    def is_open(self) -> bool:
        return self._handler is not None

    def connected(self) -> None:
        if self._handler is not None:
            self._handler.connected()

    def deliver(self, frame: bytes) -> None:
        if self._handler is not None:
            self._handler.frame(memoryview(frame))

    def end(self, error: FencepostError) -> None:
        handler, self._handler = self._handler, None
        self._network.ended(self)
        if handler is not None:
            handler.lost(error)


class ScriptedNetwork:
    """The client's way to a scripted cluster; fits wherever a `Network` does."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self._links: list[ScriptedLink] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.woken = 0

    def dial(self, address: Address, handler: Handler) -> ScriptedLink:
        link = ScriptedLink(self, address, handler)
        self._links.append(link)
        node = self._node(address)
        if node in self._cluster.keeps_out:
            refusal = self._cluster.keeps_out[node]
            self._later(0.0, lambda: link.end(refusal))
        elif node is None or node in self._cluster.down:
            self._later(0.0, lambda: link.end(Unreachable(f"nothing listens at {address}")))
        else:
            self._later(0.0, link.connected)
        return link

    def before_work(self) -> None:
        """Nobody sleeps here."""

    def poll(self, timeout: float | None) -> None:
        """Until the next thing happens, or the time is over; never for ever."""
        clock = self._cluster.clock
        now = clock.monotonic()
        if self.woken:
            self.woken, timeout = 0, 0.0
        until = float("inf") if timeout is None else now + timeout
        if self._events and self._events[0][0] <= until:
            until = max(now, self._events[0][0])
        if until == float("inf"):
            raise AssertionError("the client waits, and nothing will ever happen")
        clock.advance(until - now)
        while self._events and self._events[0][0] <= until:
            heapq.heappop(self._events)[2]()

    def wake(self) -> None:
        self.woken += 1

    def close(self) -> None:
        self._events.clear()

    def forget_sockets(self) -> None:
        """There are none."""

    def cut(self, address: Address) -> None:
        """Ends the connections to this address."""
        for link in [link for link in self._links if link.is_open and link.address == address]:
            self.sever(link)

    def sever(self, link: ScriptedLink) -> None:
        self._later(0.0, lambda: link.end(Unreachable(f"{link.address} ended the connection")))

    def lag(self, link: ScriptedLink, carry_out: Callable[[], object]) -> None:
        assert link.lags_until is not None
        left = link.lags_until - self._cluster.clock.monotonic()

        def heard() -> None:
            if not link.is_severed:
                carry_out()

        def noticed() -> None:
            link.lags_until = None
            self.ended(link)

        self._later(max(0.0, left), heard)
        self._later(max(0.0, left) + self._cluster.latency, noticed)

    def ended(self, link: ScriptedLink) -> None:
        if link.lags_until is not None:
            return
        if self._cluster.notices_ends:
            self._cluster.ownership.ended(link)

    def carry(self, link: ScriptedLink, frame: bytes) -> None:
        node = self._node(link.address)
        if node is None or node in self._cluster.down or not link.is_open or link.is_severed:
            return
        answer, script = self._cluster.receive(node, frame, link)
        if link.is_mute or answer is _NO_ANSWER:
            return
        seconds = self._cluster.latency + (script.seconds if isinstance(script, Delayed) else 0.0)
        if script in (Fate.SWALLOW, Fate.IGNORE):
            link.is_mute = True
        elif script in (Fate.CUT, Fate.LOSE) or answer is None:
            link.is_mute = True
            self._later(seconds, lambda: link.end(Unreachable(f"{link.address} ended the connection")), link)
        else:
            self._later(seconds, lambda: None if link.is_severed else link.deliver(answer), link)

    def _later(self, seconds: float, event: Callable[[], None], link: ScriptedLink | None = None) -> None:
        due = self._cluster.clock.monotonic() + seconds
        if link is not None:
            due = link.answers_until = max(due, link.answers_until)
        heapq.heappush(self._events, (due, next(self._numbers), event))

    def _node(self, address: Address) -> int | None:
        return next((node for node, known in self._cluster.addresses.items() if known == address), None)

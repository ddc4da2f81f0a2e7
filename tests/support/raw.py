"""A client that sends exactly what a test wants: one blocking socket, any bytes, answers in the order they come.

`call` encodes a request from plain dicts through `fencepost.wire` and decodes its answer; `send` and `receive` do the
two halves apart, for pipelining; `send_bytes` sends what no client should.
"""

from __future__ import annotations

import select
import socket
import uuid
from collections.abc import Mapping, Sequence
from struct import Struct
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from fencepost.errors import ErrorCode
from fencepost.kernel import decode_batch, read_header
from fencepost.kernel.header import BatchHeader
from fencepost.wire import frame, hot, messages

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
INIT_PRODUCER_ID: Final = 22
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
METADATA_VERSION: Final = 12
"""Used unless a test says otherwise: the newest versions that name topics instead of carrying their ids."""

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3

LENGTH: Final = Struct(">i")


class ConnectionEnded(Exception):
    """The server closed the connection."""


class Produced(NamedTuple):
    error: ErrorCode
    base_offset: int
    message: str | None = None


class Fetched(NamedTuple):
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    data: bytes
    """What came, byte for byte: whole batches, perhaps a cut one at the end."""

    @property
    def headers(self) -> list[BatchHeader]:
        return [read_header(self.data, at) for at in self._places()]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for at in self._places() for record in decode_batch(self.data, at)]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for at in self._places() for record in decode_batch(self.data, at)]

    def _places(self) -> list[int]:
        """Where each whole batch starts."""
        places, at = [], 0
        while len(self.data) - at >= 61:
            size = read_header(self.data, at).size
            if at + size > len(self.data):
                break
            places.append(at)
            at += size
        return places


class RawClient:
    def __init__(self, address: str, *, client_id: str | None = "raw", timeout: float = 30) -> None:
        self.address = address
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._correlation_id = 0
        self._sent: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # --- bytes ---

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        self.send_bytes(LENGTH.pack(len(body)) + body)

    def shut_down_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def receive_frame(self) -> bytes:
        return self._receive_exactly(LENGTH.unpack(self._receive_exactly(4))[0])

    def has_answer(self) -> bool:
        """Whether something has arrived that was not received yet; does not wait."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def is_closed_by_server(self) -> bool:
        """Waits for the end of the connection; False if an answer comes instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionResetError:
                raise ConnectionEnded from None
            if not piece:
                raise ConnectionEnded
            data += piece
        return bytes(data)

    # --- messages ---

    def frame_of(self, key: int, version: int, body: bytes) -> bytes:
        """A request frame with the next correlation id; its answer is expected."""
        self._correlation_id += 1
        self._sent[self._correlation_id] = (key, version)
        return frame.request_head(key, version, self._correlation_id, self._client_id) + body

    def send(self, key: int, version: int, /, **fields: Any) -> int:
        """Sends a request, answers with its correlation id."""
        self.send_frame(self.frame_of(key, version, messages.encode_request(key, version, fields)))
        return self._correlation_id

    def receive(self) -> tuple[int, Any]:
        """The next answer: its correlation id and what it says."""
        whole = self.receive_frame()
        correlation_id = LENGTH.unpack_from(whole)[0]
        key, version = self._sent.pop(correlation_id)
        _, body_at = frame.read_response_head(key, version, whole)
        if key == PRODUCE:
            return correlation_id, hot.decode_produce_response(version, whole, body_at)
        if key == FETCH:
            return correlation_id, hot.decode_fetch_response(version, whole, body_at)
        return correlation_id, messages.decode_response(key, version, whole, body_at)

    def call(self, key: int, version: int, /, **fields: Any) -> Any:
        sent = self.send(key, version, **fields)
        received, answer = self.receive()
        assert received == sent, f"answer {received} came for request {sent}"
        return answer

    # --- Produce ---

    def send_produce(
        self,
        topic: str | uuid.UUID,
        data: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = PRODUCE_VERSION,
    ) -> int:
        return self.send_produce_many({topic: {partition: data}}, acks=acks, version=version)

    def send_produce_many(
        self,
        topics: Mapping[Any, Mapping[int, bytes | None]],
        *,
        acks: int = -1,
        version: int = PRODUCE_VERSION,
    ) -> int:
        request = hot.ProduceRequest(
            transactional_id=None,
            acks=acks,
            timeout_ms=10_000,
            topics=[
                hot.ProduceTopic(
                    name=topic if isinstance(topic, str) else None,
                    topic_id=topic if isinstance(topic, uuid.UUID) else None,
                    partitions=[
                        hot.ProducePartition(index, None if data is None else memoryview(data))
                        for index, data in partitions.items()
                    ],
                )
                for topic, partitions in topics.items()
            ],
        )
        body = b"".join(hot.encode_produce_request(version, request))
        self.send_frame(self.frame_of(PRODUCE, version, body))
        if acks == 0:
            del self._sent[self._correlation_id]
        return self._correlation_id

    def receive_produced(self) -> Produced:
        """The next answer, which must be one of Produce with one partition."""
        _, answer = self.receive()
        return only_partition(answer)

    def produce(
        self,
        topic: str | uuid.UUID,
        data: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = PRODUCE_VERSION,
    ) -> Produced:
        self.send_produce(topic, data, partition=partition, acks=acks, version=version)
        return self.receive_produced()

    # --- Fetch ---

    def send_fetch(
        self,
        topic: str | uuid.UUID,
        offset: int,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 10 << 20,
        version: int = FETCH_VERSION,
        session_id: int = 0,
        session_epoch: int = -1,
    ) -> int:
        wanted = hot.FetchPartition(index=partition, fetch_offset=offset, max_bytes=partition_max_bytes)
        topics = [
            hot.FetchTopic(
                name=topic if isinstance(topic, str) else None,
                topic_id=topic if isinstance(topic, uuid.UUID) else None,
                partitions=[wanted],
            )
        ]
        return self.send_fetch_request(
            hot.FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=0,
                topics=topics,
                session_id=session_id,
                session_epoch=session_epoch,
            ),
            version,
        )

    def send_fetch_offsets(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 1 << 20,
    ) -> int:
        """Of several partitions: index → offset."""
        wanted = [hot.FetchPartition(index=index, fetch_offset=at, max_bytes=1 << 20) for index, at in offsets.items()]
        topics = [hot.FetchTopic(name=topic, topic_id=None, partitions=wanted)]
        return self.send_fetch_request(
            hot.FetchRequest(
                max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, isolation_level=0, topics=topics
            )
        )

    def send_fetch_request(self, request: hot.FetchRequest, version: int = FETCH_VERSION) -> int:
        body = hot.encode_fetch_request(version, request)
        self.send_frame(self.frame_of(FETCH, version, body))
        return self._correlation_id

    def receive_fetched(self) -> Fetched:
        """The next answer, which must be one of Fetch with one partition and no error above it."""
        _, answer = self.receive()
        assert answer.error_code == ErrorCode.NONE
        [topic] = answer.topics
        [partition] = topic.partitions
        return fetched(partition)

    def fetch(self, topic: str | uuid.UUID, offset: int, **how: Any) -> Fetched:
        self.send_fetch(topic, offset, **how)
        return self.receive_fetched()

    # --- the rest, by what tests ask most ---

    def create_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> uuid.UUID:
        """Creates a topic and waits until it can be written to; answers with its id."""
        answer = self.call(CREATE_TOPICS, 7, topics=[new_topic(name, partitions, configs=configs)], timeout=30_000)
        [topic] = answer.topics
        assert topic.error_code == ErrorCode.NONE, f"{ErrorCode.of(topic.error_code).name}: {topic.error_message}"
        self.await_topic(name, partitions)
        topic_id: uuid.UUID = topic.topic_id
        return topic_id

    def await_topic(self, name: str, partitions: int = 1) -> None:
        """Kafka's brokers learn of a new topic a moment after its creation was answered."""
        unknown = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        for index in range(partitions):
            while self.ask_offset(name, LATEST, partition=index).error_code in unknown:
                pass

    def ask_offset(self, topic: str, timestamp: int, *, partition: int = 0, version: int = 7) -> Any:
        """The answer of ListOffsets for one partition."""
        answer = self.call(
            LIST_OFFSETS,
            version,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
            timeout=30_000,
        )
        [found] = answer.topics[0].partitions
        return found

    def metadata(
        self,
        topics: Sequence[str | uuid.UUID] | None,
        *,
        version: int = METADATA_VERSION,
        create: bool = False,
    ) -> Any:
        """Topics by name or by id; None: all of them."""
        wanted = None
        if topics is not None:
            wanted = [
                {"name": t, "topic_id": None} if isinstance(t, str) else {"name": None, "topic_id": t} for t in topics
            ]
        return self.call(
            METADATA,
            version,
            topics=wanted,
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    def list_offset(self, topic: str, timestamp: int, *, partition: int = 0, version: int = 7) -> tuple[int, int]:
        """(offset, timestamp)"""
        found = self.ask_offset(topic, timestamp, partition=partition, version=version)
        assert found.error_code == ErrorCode.NONE
        return found.offset, found.timestamp

    def end_offset(self, topic: str, partition: int = 0) -> int:
        return self.list_offset(topic, LATEST, partition=partition)[0]

    def init_producer_id(self, version: int = 4, **fields: Any) -> Any:
        """InitProducerId, asked again while a Kafka that has just started is still fetching its block of pids."""
        wanted = {"transactional_id": None, "transaction_timeout": 60_000, **fields}
        while True:
            answer = self.call(INIT_PRODUCER_ID, version, **wanted)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answer

    def new_pid(self) -> int:
        answer = self.init_producer_id()
        assert answer.error_code == ErrorCode.NONE
        pid: int = answer.producer_id
        return pid


def only_partition(answer: hot.ProduceResponse) -> Produced:
    [topic] = answer.topics
    [partition] = topic.partitions
    return Produced(ErrorCode.of(partition.error_code), partition.base_offset, partition.error_message)


def fetched(partition: hot.FetchedPartition) -> Fetched:
    return Fetched(
        ErrorCode.of(partition.error_code),
        partition.high_watermark,
        partition.log_start_offset,
        b"".join(partition.records),
    )


def new_topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    *,
    configs: dict[str, str] | dict[str, str | None] | None = None,
    assignments: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """One topic of a CreateTopics request."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": list(assignments),
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }

"""Record batches to and from one broker over one socket, blocking and pipelined: for a task that moves a range.

A Spark task has one thing to do, in order, and nothing to do meanwhile; it needs no send thread and no queues. It
writes several Produce requests ahead and reads the answers as they come, or asks for the next Fetch while it decodes
the last.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, Final

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import (
    SOFTWARE_NAME,
    Question,
    Welcome,
    follow,
    introduce,
    open_socket,
    renew,
    tls_failed,
)
from fencepost.client.cluster.security import OPEN, Security
from fencepost.errors import Unreachable
from fencepost.kernel import room
from fencepost.wire import hot, messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import framed, read_response_head, request_head

_LENGTH: Final = Struct(">i")
NEWEST_PRODUCE: Final = 10
"""Later versions answer a write outside its transaction with TRANSACTION_ABORTABLE, or add partitions implicitly."""
NEWEST_FETCH: Final = 12
"""Later versions name topics by id."""


class Link(Closing):
    def __init__(
        self,
        address: Address,
        *,
        timeout: float = 60.0,
        client_id: str = SOFTWARE_NAME,
        security: Security = OPEN,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._correlation_id = 0
        self._security = security
        self._expected: deque[tuple[int, int, int]] = deque()
        self._ahead: deque[tuple[int, memoryview]] = deque()
        """Answers that were read before anybody asked for them."""
        self._session_ends = float("inf")
        self._socket = open_socket(address, security, timeout)
        try:
            self._versions = self._welcomed(follow(introduce(address, security.exchange()), self._put))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet."""
        return len(self._ahead) + len(self._expected)

    def _put(self, question: Question) -> Any:
        key, version, fields = question
        self._write(key, version, [messages.encode_request(key, version, fields)])
        return messages.decode_response(key, *self._read())

    def _welcomed(self, welcome: Welcome) -> Mapping[int, tuple[int, int]]:
        self._session_ends = float("inf") if welcome.session is None else time.monotonic() + welcome.session
        return welcome.versions

    def _renew(self) -> None:
        """Authenticates anew (KIP-368); what is under way is answered first."""
        while self._expected:
            self._ahead.append(self._read())
        exchange = self._security.exchange()
        assert exchange is not None
        self._welcomed(follow(renew(self.address, self._versions, exchange), self._put))

    # -- Produce ----------------------------------------------------------------------------------------------

    def send_batch(self, topic: str, partition: int, batch: bytes | bytearray | memoryview, name: str | None) -> None:
        """Sends one batch; its answer is taken with `receive_produced`. `name` is the transactional id, if any."""
        wanted = [hot.ProduceTopic(topic, None, [hot.ProducePartition(partition, memoryview(batch))])]
        version = min(NEWEST_PRODUCE, self._versions[Key.PRODUCE][1])
        request = hot.ProduceRequest(name, -1, 30_000, wanted)
        self._send(Key.PRODUCE, version, hot.encode_produce_request(version, request))

    def receive_produced(self) -> hot.ProducedPartition:
        """The answer to the oldest batch that has none yet."""
        version, body = self._receive()
        return hot.decode_produce_response(version, body).topics[0].partitions[0]

    # -- Fetch ------------------------------------------------------------------------------------------------

    def send_fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, max_wait_ms: int, committed: bool
    ) -> None:
        wanted = [hot.FetchTopic(topic, None, [hot.FetchPartition(partition, offset, max_bytes)])]
        version = min(NEWEST_FETCH, self._versions[Key.FETCH][1])
        request = hot.FetchRequest(max_wait_ms, 1, max_bytes, int(committed), wanted)
        self._send(Key.FETCH, version, [hot.encode_fetch_request(version, request)])

    def receive_fetched(self) -> hot.FetchedPartition:
        version, body = self._receive()
        answer = hot.decode_fetch_response(version, body)
        raise_for(answer.error_code, f"fetching from {self.address}")
        return answer.topics[0].partitions[0]

    # -- bytes ------------------------------------------------------------------------------------------------

    def _send(self, key: int, version: int, parts: Iterable[Any]) -> None:
        if time.monotonic() >= self._session_ends:
            self._renew()
        self._write(key, version, parts)

    def _receive(self) -> tuple[int, memoryview]:
        return self._ahead.popleft() if self._ahead else self._read()

    def _write(self, key: int, version: int, parts: Iterable[Any]) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        whole = framed([request_head(key, version, self._correlation_id, self._client_id), *parts])
        self._expected.append((self._correlation_id, key, version))
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.sendall(b"".join(whole))
            else:
                self._gather([memoryview(part) for part in whole])
        except OSError as error:
            raise self._ended(error) from error

    def _gather(self, parts: list[memoryview]) -> None:
        """All of them in as few calls as the socket takes: none is copied, and the broker is woken once."""
        while parts:
            sent = self._socket.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]

    def _read(self) -> tuple[int, memoryview]:
        correlation_id, key, version = self._expected.popleft()
        (size,) = _LENGTH.unpack(self._exactly(4))
        frame = self._exactly(size)
        answered, body_at = read_response_head(key, version, frame)
        if answered != correlation_id:
            raise Unreachable(f"{self.address} answered {answered} where {correlation_id} was asked")
        return version, frame[body_at:]

    def _exactly(self, size: int) -> memoryview:
        view, at = memoryview(room(size)), 0
        try:
            while at < size:
                taken = self._socket.recv_into(view[at:])
                if not taken:
                    raise ConnectionResetError("end of stream")
                at += taken
        except OSError as error:
            raise self._ended(error) from error
        return view

    def _ended(self, error: OSError) -> Unreachable:
        if isinstance(error, ssl.SSLError):
            return tls_failed(self.address, error)
        return Unreachable(f"{self.address} closed the connection: {error.strerror or error}")

"""A cluster without sockets: channels that answer from a script, in the real message formats.

Every request is encoded and decoded as on the wire, and so is every answer, in the versions that the test chooses: a
field of the wrong name or type fails here as it would there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import FOREVER, Loop, Request
from fencepost.client.cluster.handshake import choose_version
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ErrorCode, FencepostError
from fencepost.wire import messages
from fencepost.wire.apis import Key

T = TypeVar("T")
Handler = Callable[[Any, int], Mapping[str, Any]]
"""(request, version) → the fields of the answer."""


class Asked(NamedTuple):
    broker: int
    key: int
    version: int
    request: Any


class FakeCluster:
    """Brokers 1 … n at port 9000 + id. Topics are given as name → leaders of the partitions."""

    def __init__(self, brokers: int = 1, topics: Mapping[str, list[int]] | None = None) -> None:
        self.brokers = range(1, brokers + 1)
        self.topics = dict(topics or {})
        self.controller = 1
        self.highest: dict[int, int] = {}
        """Key → highest version offered; messages.versions by default, −1 for an API that is not offered."""
        self.asked: list[Asked] = []
        self._handlers: dict[int, list[Handler]] = {
            Key.METADATA: [self._metadata],
            Key.API_VERSIONS: [lambda _request, _version: {"error_code": 0, "api_keys": []}],
        }

    def on(self, key: Key, *handlers: Handler) -> None:
        """Answers to the API: each handler once, the last one for ever."""
        self._handlers[key] = list(handlers)

    def admin(self, **settings: Any) -> Admin:
        settings = {"request_timeout": 5.0, "retry_backoff": 0.001} | settings
        admin = Admin(ClientSettings((Address("fake", 9001),), **settings))
        admin._routes = FakeRoutes(self, admin.settings)
        return admin

    def requests(self, key: Key) -> list[Asked]:
        return [asked for asked in self.asked if asked.key == key]

    def answer(self, broker: int, key: int, version: int, body: bytes) -> bytes:
        request = messages.decode_request(key, version, body)
        self.asked.append(Asked(broker, key, version, request))
        handlers = self._handlers[key]
        handler = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        return bytes(messages.encode_response(key, version, {"throttle_time": 0, **handler(request, version)}))

    def _metadata(self, request: Any, _version: int) -> Mapping[str, Any]:
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return {
            "error_code": 0,
            "cluster_id": "fake",
            "controller_id": self.controller,
            "brokers": [{"node_id": i, "host": "fake", "port": 9000 + i, "rack": None} for i in self.brokers],
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> Mapping[str, Any]:
        known = name in self.topics
        return {
            "error_code": 0 if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "name": name,
            "topic_id": None,
            "is_internal": name.startswith("__"),
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": index,
                    "leader_id": leader,
                    "replica_nodes": [leader],
                    "isr_nodes": [leader],
                    "offline_replicas": [],
                }
                for index, leader in enumerate(self.topics.get(name, []))
            ],
        }


class FakeRoutes(Routes):
    def __init__(self, cluster: FakeCluster, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._loop = FakeLoop(cluster, settings)

    def run(self, work: Callable[[Loop], T]) -> T:
        return work(self._loop)


class FakeLoop(Loop):
    """Requests are answered while they are put."""

    def __init__(self, cluster: FakeCluster, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._network.close()
        self._cluster = cluster

    def put(self, address: Address, request: Request) -> Request:
        request.send(FakeConnection(self._cluster, address))  # type: ignore[arg-type]
        return request

    def run_until(self, is_over: Callable[[], bool], until: float = FOREVER) -> None:
        while not is_over() and time.monotonic() < until:
            assert until < FOREVER, "nobody is left who could answer"
            time.sleep(max(0.0, until - time.monotonic()))


class Hangs(Exception):
    """Raised by a handler: there is no answer."""


class FakeConnection:
    def __init__(self, cluster: FakeCluster, address: Address) -> None:
        self._cluster = cluster
        self.address = address

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        offered = {}
        for key in Key:
            lowest, highest = messages.versions(key)
            highest = self._cluster.highest.get(key, highest)
            if highest >= lowest:
                offered[int(key)] = (lowest, highest)
        return offered

    def version(self, key: int, at_most: int | None = None) -> int:
        return choose_version(self.address, self.versions, key, at_most)

    def request(
        self,
        key: int,
        version: int,
        body: Sequence[bytes],
        answered: Callable[[int, memoryview], None],
        lost: Callable[[FencepostError, bool], None],
        *,
        timeout: float | None = None,
    ) -> None:
        try:
            answer = self._cluster.answer(self.address.port - 9000, key, version, b"".join(body))
        except Hangs:
            return
        except FencepostError as error:
            lost(error, True)
        else:
            answered(version, memoryview(answer))

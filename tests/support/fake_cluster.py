"""A cluster without sockets: channels that answer from a script, in the real message formats.

Every request is encoded and decoded as on the wire, and so is every answer, in the versions that the test chooses: a
field of the wrong name or type fails here as it would there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import Channel, Reply
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ErrorCode, ServerError
from fencepost.wire import messages
from fencepost.wire.apis import Key

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
        self._handlers: dict[int, list[Handler]] = {Key.METADATA: [self._metadata]}

    def on(self, key: Key, *handlers: Handler) -> None:
        """Answers to the API: each handler once, the last one for ever."""
        self._handlers[key] = list(handlers)

    def admin(self, **settings: Any) -> Admin:
        settings = {"request_timeout": 5.0, "retry_backoff": 0.001} | settings
        admin = Admin(ClientSettings((Address("fake", 9001),), **settings))
        admin._routes.channel = lambda address: FakeChannel(self, address)  # type: ignore[method-assign]
        return admin

    def requests(self, key: Key) -> list[Asked]:
        return [asked for asked in self.asked if asked.key == key]

    def answer(self, broker: int, key: int, version: int, fields: Mapping[str, Any]) -> Any:
        request = messages.decode_request(key, version, messages.encode_request(key, version, fields))
        self.asked.append(Asked(broker, key, version, request))
        handlers = self._handlers[key]
        handler = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        body = messages.encode_response(key, version, {"throttle_time": 0, **handler(request, version)})
        return messages.decode_response(key, version, body)

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


class FakeChannel(Channel):
    def __init__(self, cluster: FakeCluster, address: Address) -> None:
        super().__init__(address)
        self._cluster = cluster

    def versions(self) -> Mapping[int, tuple[int, int]]:
        offered = {}
        for key in Key:
            lowest, highest = messages.versions(key)
            highest = self._cluster.highest.get(key, highest)
            if highest >= lowest:
                offered[int(key)] = (lowest, highest)
        return offered

    def round_trip(self) -> float:
        return 0.0

    def request(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, reconnect: bool = True
    ) -> Reply:
        if key not in self.versions():
            raise ServerError(ErrorCode.UNSUPPORTED_VERSION, messages.API_NAMES[key])
        highest = self.versions()[key][1]
        version = highest if at_most is None else min(highest, at_most)
        return Reply(version, self._cluster.answer(self.address.port - 9000, key, version, fields))

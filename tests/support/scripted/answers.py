"""The default responses of a scripted broker, which are a Kafka broker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.core.own.claim_request import DEFAULT_GROUP
from fencepost.core.own.ownership import ClaimedResource, Granted
from fencepost.errors import ErrorCode
from fencepost.kernel import Buffer
from fencepost.types import EARLIEST, Generation
from fencepost.wire import hot, messages
from fencepost.wire.apis import DEBUGGER
from tests.support.scripted.fates import Api, ErrorAnswer, Script, ScriptedRequest
from tests.support.scripted.log import MemoryLog
from tests.support.scripted.state import Connected, ScriptedState


def decode(key: int, version: int, frame: bytes, at: int) -> Any:
    if key == Api.PRODUCE:
        return hot.decode_produce_request(version, frame, at)
    if key == Api.FETCH:
        return hot.decode_fetch_request(version, frame, at)
    return messages.decode_request(key, version, frame, at)


class ScriptedBrokers:
    """All brokers of a cluster; the request names the node."""

    def __init__(self, state: ScriptedState) -> None:
        self._state = state
        self._next_pid = 1000

    def carry_out(self, request: ScriptedRequest, script: Script, link: Connected) -> bytes:
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
                code = script.code if isinstance(script, ErrorAnswer) else ErrorCode.NONE
                fields = {"error_code": code, "throttle_time": 0, "producer_id": self._next_pid, "producer_epoch": 0}
            case Api.LIST_OFFSETS:
                fields = self._list_offsets(message)
            case Api.OWN:
                fields = self._own(message, link)
            case Api.DESCRIBE_OWNERS:
                fields = self._owners()
            case _:
                raise LookupError(f"a scripted cluster does not answer API key {key}")
        return messages.encode_response(key, version, fields)

    def _api_versions(self) -> Mapping[str, Any]:
        keys = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in self._state.versions.items()
        ]
        return {"error_code": 0, "api_keys": keys, "throttle_time": 0}

    def _metadata(self, message: Any) -> Mapping[str, Any]:
        names = list(self._state.logs) if message.topics is None else [topic.name for topic in message.topics]
        brokers = [
            {"node_id": node, "host": address.host, "port": address.port, "rack": None}
            for node, address in self._state.addresses.items()
            if node not in self._state.down
        ]
        return {
            "throttle_time": 0,
            "brokers": brokers,
            "cluster_id": "scripted",
            "controller_id": 0,
            "topics": [
                self._describe(name, may_create=getattr(message, "allow_auto_topic_creation", True)) for name in names
            ],
        }

    def _describe(self, name: str, *, may_create: bool) -> Mapping[str, Any]:
        code = ErrorCode.NONE
        if name in self._state.hidden:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        elif name not in self._state.logs:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if self._state.creates_topics and may_create:
                self._state.create(name, 1)
                code = ErrorCode.LEADER_NOT_AVAILABLE
        logs = self._state.logs[name] if code is ErrorCode.NONE else []
        partitions = [
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": log.leader if log.leader not in self._state.down else -1,
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
            "topic_id": self._state.topic_ids.get(name),
            "is_internal": False,
            "partitions": partitions,
            "topic_authorized_operations": 0,
        }

    def _produce(self, request: ScriptedRequest, script: Script) -> hot.ProduceResponse:
        topics = []
        for topic in request.message.topics:
            partitions = []
            for part in topic.partitions:
                log = self._state.led(request.node, topic.name, part.index)
                offset = -1
                if isinstance(script, ErrorAnswer):
                    code = script.code
                    if script.appended and log is not None:
                        refused, offset = log.append(part.records)
                        code = refused if refused is not ErrorCode.NONE else code
                elif log is None:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    code, offset = log.append(part.records)
                partitions.append(hot.ProducedPartition(part.index, int(code), offset))
            topics.append(hot.ProducedTopic(topic.name, None, partitions))
        return hot.ProduceResponse(topics)

    def _fetch(self, request: ScriptedRequest) -> hot.FetchResponse:
        topics = []
        for topic in request.message.topics:
            partitions = []
            for part in topic.partitions:
                log = self._state.led(request.node, topic.name, part.index)
                if log is None:
                    partitions.append(hot.FetchedPartition(part.index, int(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
                elif part.fetch_offset > log.end:
                    partitions.append(hot.FetchedPartition(part.index, int(ErrorCode.OFFSET_OUT_OF_RANGE)))
                else:
                    records: Sequence[Buffer] = log.read(part.fetch_offset, part.max_bytes)
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

    def _own(self, message: Any, link: Connected) -> Mapping[str, Any]:
        """Answer at once; a test that needs a wait uses `DelayedAnswer`."""
        group = DEFAULT_GROUP if message.group is None else message.group
        self._state.ownership.release(link, group, message.release)
        wanted = [
            ClaimedResource(each.name, Generation(each.generation), None if each.after_token < 0 else each.after_token)
            for each in message.resources
        ]
        judged = self._state.ownership.claim(link, group, wanted)
        if isinstance(judged, Granted):
            self._state.sever(judged.severed)
        code = ErrorCode.NONE if isinstance(judged, Granted) else ErrorCode.ILLEGAL_GENERATION
        rows = [
            {
                "name": row.name,
                "resource": row.name,
                "error_code": int(code),
                "generation": row.generation,
                "token": row.token,
            }
            for row in judged.rows
        ]
        return {"error_code": int(code), "error_message": None, "group": group, "resources": rows}

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
            for group, name, holding in self._state.ownership
        ]
        return {"error_code": 0, "owners": owners, "waiting": []}

    def _offset(self, asker: int, topic: str, part: Any) -> int:
        log: MemoryLog = self._state.logs[topic][part.partition_index]
        if int(part.timestamp) == EARLIEST:
            return 0
        return log.end if asker == DEBUGGER else log.high_watermark

"""What one message costs: ours against kio's own serialisers, microseconds per call (best of five runs).

    python -m bench.wire

Produce and Fetch carry one topic, one partition and 16 KiB of records, in the highest version.
"""

from __future__ import annotations

import io
import timeit
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.wire import hot, messages
from fencepost.wire.frame import read_request_head, request_head

RECORDS = bytes(16 * 1024)
TOPIC_ID = UUID(int=7)


def microseconds(call: Callable[[], object], number: int = 5_000) -> float:
    return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e6


def kio_calls(kind: Any, data: bytes) -> tuple[Callable[[], object], Callable[[], object]]:
    read: Any = entity_reader(kind)
    write: Any = entity_writer(kind)
    message = read(data, 0)[0]
    return lambda: read(data, 0), lambda: write(io.BytesIO(), message)


def rows() -> list[tuple[str, float, float | None]]:
    view = memoryview(RECORDS)
    produce = hot.ProduceRequest(None, -1, 30_000, [hot.ProduceTopic(None, TOPIC_ID, [hot.ProducePartition(0, view)])])
    produced = hot.ProduceResponse([hot.ProducedTopic(None, TOPIC_ID, [hot.ProducedPartition(0, 0, 5)])])
    fetch = hot.FetchRequest(500, 1, 1 << 20, 0, [hot.FetchTopic(None, TOPIC_ID, [hot.FetchPartition(0, 5, 1 << 20)])])
    fetched = hot.FetchResponse([hot.FetchedTopic(None, TOPIC_ID, [hot.FetchedPartition(0, 0, 9, 9, 0, None, [view])])])
    table: list[tuple[str, float, float | None]] = []

    def compare(
        name: str, kind: Any, encoded: bytes, decode: Callable[[], object], encode: Callable[[], object]
    ) -> None:
        kio_decode, kio_encode = kio_calls(kind, encoded)
        table.append((f"{name} decode", microseconds(decode), microseconds(kio_decode)))
        table.append((f"{name} encode", microseconds(encode), microseconds(kio_encode)))

    data = b"".join(hot.encode_produce_request(13, produce))
    compare(
        "Produce v13 request",
        load_request_schema(0, 13),
        data,
        lambda data=data: hot.decode_produce_request(13, data),  # type: ignore[misc]
        lambda: hot.encode_produce_request(13, produce),
    )
    data = hot.encode_produce_response(13, produced)
    compare(
        "Produce v13 response",
        load_response_schema(0, 13),
        data,
        lambda data=data: hot.decode_produce_response(13, data),  # type: ignore[misc]
        lambda: hot.encode_produce_response(13, produced),
    )
    data = hot.encode_fetch_request(18, fetch)
    compare(
        "Fetch v18 request",
        load_request_schema(1, 18),
        data,
        lambda data=data: hot.decode_fetch_request(18, data),  # type: ignore[misc]
        lambda: hot.encode_fetch_request(18, fetch),
    )
    data = b"".join(hot.encode_fetch_response(18, fetched))
    compare(
        "Fetch v18 response",
        load_response_schema(1, 18),
        data,
        lambda data=data: hot.decode_fetch_response(18, data),  # type: ignore[misc]
        lambda: hot.encode_fetch_response(18, fetched),
    )
    heartbeat = {"group_id": "group", "generation_id": 1, "member_id": "member"}
    data = messages.encode_request(12, 4, heartbeat)
    compare(
        "Heartbeat v4 request",
        load_request_schema(12, 4),
        data,
        lambda data=data: messages.decode_request(12, 4, data),  # type: ignore[misc]
        lambda: messages.encode_request(12, 4, heartbeat),
    )
    partitions = [
        {"error_code": 0, "partition_index": i, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
        for i in range(10)
    ]
    metadata = {
        "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": 9092}],
        "topics": [{"error_code": 0, "name": "t", "topic_id": TOPIC_ID, "partitions": partitions}],
    }
    data = messages.encode_response(3, 12, metadata)
    compare(
        "Metadata v12 response, 10 partitions",
        load_response_schema(3, 12),
        data,
        lambda data=data: messages.decode_response(3, 12, data),  # type: ignore[misc]
        lambda: messages.encode_response(3, 12, metadata),
    )
    head = request_head(0, 13, 7, "client")
    table.append(("request header decode", microseconds(lambda: read_request_head(head)), None))
    return table


if __name__ == "__main__":
    print(f"{'':45}{'fencepost':>10}{'kio':>10}")
    for name, ours, kios in rows():
        print(f"{name:45}{ours:10.2f}{'' if kios is None else format(kios, '10.2f')}")

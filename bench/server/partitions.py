"""Ten thousand partitions under a limit of 1,024 open files: created, one record written to each, all read back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.brokers import Broker, Fencepost, resident_mib
from bench.results import Results
from bench.server.plan import Plan, Say
from fencepost.kernel import decode_batch, encode_batch
from fencepost.wire import hot
from tests.support.raw import CREATE_TOPICS, FETCH_VERSION, RawClient, new_topic

SECTION = "many partitions"
OPEN_FILES = "open files"
_PER_REQUEST = 500
_TOPIC = "many"


def measure(plan: Plan, results: Results, say: Say) -> None:
    for sync in ("os", "always"):
        broker = Fencepost(plan.folder / f"partitions-{sync}", sync, open_files=plan.open_files)
        try:
            broker.start()
            _measure(plan, broker, results, say)
        finally:
            broker.remove()


def _measure(plan: Plan, broker: Broker, results: Results, say: Say) -> None:
    what = f"{plan.partitions:,} partitions, {plan.open_files:,} files"

    def note(label: str, unit: str, value: float) -> None:
        results.add(SECTION, (what, label), broker.name, unit, value)
        say(f"{broker.name}, {what}: {label} {value:.2f} {unit}")

    with RawClient(broker.address, timeout=300) as client:
        began = time.perf_counter()
        answer = client.call(CREATE_TOPICS, 7, topics=[new_topic(_TOPIC, plan.partitions)], timeout=60_000)
        if answer.topics[0].error_code:
            raise RuntimeError(f"not created: {answer}")
        created = time.perf_counter()
        note("create", "s", created - began)
        for indexes in _portions(plan.partitions):
            _write(client, indexes)
        written = time.perf_counter()
        note("write one record to each", "s", written - created)
        for indexes in _portions(plan.partitions):
            _read_back(client, indexes)
        note("read them all back", "s", time.perf_counter() - written)
        note(OPEN_FILES, "files", _open_files(broker))
        note("resident memory", "MiB", resident_mib(broker))


def _portions(count: int) -> Iterator[range]:
    for start in range(0, count, _PER_REQUEST):
        yield range(start, min(start + _PER_REQUEST, count))


def _write(client: RawClient, indexes: range) -> None:
    now = int(time.time() * 1000)
    client.send_produce_many({_TOPIC: {i: bytes(encode_batch([(None, b"%d" % i, now, None)])) for i in indexes}})
    _, answer = client.receive()
    refused = [p for topic in answer.topics for p in topic.partitions if p.error_code]
    if refused:
        raise RuntimeError(f"{len(refused)} partitions refused, the first one: {refused[0]}")


def _read_back(client: RawClient, indexes: range) -> None:
    wanted = [hot.FetchPartition(index, 0, 4096) for index in indexes]
    client.send_fetch_request(
        hot.FetchRequest(1000, 1, 50 << 20, 0, [hot.FetchTopic(_TOPIC, None, wanted)]), FETCH_VERSION
    )
    _, answer = client.receive()
    for topic in answer.topics:
        for partition in topic.partitions:
            [record] = decode_batch(b"".join(partition.records))
            if record.value != b"%d" % partition.index:
                raise RuntimeError(f"partition {partition.index} holds {record.value!r}")


def _open_files(broker: Broker) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))

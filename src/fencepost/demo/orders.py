"""The first act: a producer writes each order once, although the server is killed meanwhile and restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from fencepost.client.admin_client import Admin
from fencepost.client.producer import Producer
from fencepost.demo.narrator import Narrator
from fencepost.demo.picture import Timeline, Watch
from fencepost.server.server import Server

TOPIC: Final = "orders"
PARTITIONS: Final = 3
_CUSTOMERS: Final = 1000
_AT_A_TIME: Final = 5000
_MEMORY: Final = 8 << 20
"""The producer's memory; small, so that it cannot buffer everything while the server is away."""


class DemoBroker:
    """The embedded server as a process, which can be killed and restarted with the same data and address."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.address = "127.0.0.1:0"  # a free port at first, the same one afterwards
        self._server: Server | None = None

    def start(self) -> float:
        """Start the server and return the seconds until it listened."""
        began = time.monotonic()
        self._server = Server(self._data, listen=self.address, sync="always", process=True).start()
        self.address = self._server.address
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill with SIGKILL: nothing is finished or flushed."""
        assert self._server is not None
        self._server.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._server is not None:
            self._server.stop()


def order(number: int) -> tuple[bytes, bytes]:
    """Return key and value of an order; both depend on its number alone."""
    customer = b"customer-%d" % (number * 7919 % _CUSTOMERS)
    return customer, b'{"order":%d,"customer":"%s","cents":%d}' % (number, customer, 100 + number * 31 % 9900)


def number_of(value: bytes) -> int:
    """Return the order's number, from the original value or from the Spark job's."""
    if value.startswith(b'{"order":'):
        return int(value[9 : value.index(b",")])
    return int(json.loads(value)["order"])


def write(broker: DemoBroker, records: int, narrator: Narrator, timeline: Timeline) -> float:
    """Write orders 0 … records − 1 and kill the server half-way. Return the seconds it took."""
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    began = time.monotonic()
    with (
        Watch(timeline, "orders written", broker.address, TOPIC),
        narrator.bar("writing", records) as moved,
        Producer(broker.address, compression="lz4", buffer_memory=_MEMORY) as producer,
    ):
        for first in range(0, records, _AT_A_TIME):
            if first <= records // 2 < first + _AT_A_TIME:
                _kill(broker, first, narrator, timeline)
            for number in range(first, min(first + _AT_A_TIME, records)):
                key, value = order(number)
                producer.send(TOPIC, value, key=key)
            moved(min(first + _AT_A_TIME, records))
        producer.flush()
    return time.monotonic() - began


def _kill(broker: DemoBroker, sent: int, narrator: Narrator, timeline: Timeline) -> None:
    """Kill and restart the server. In-flight responses are lost, so the producer retries, and the server must drop
    the duplicates."""
    broker.kill()
    timeline.mark("server killed")
    seconds = broker.start()
    narrator.blow("kill -9", f"the server, after {sent:,} sends; back after {seconds:.2f} s on the same data")


def numbers(found: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, int]]:
    for partition, value in found:
        yield partition, number_of(value)

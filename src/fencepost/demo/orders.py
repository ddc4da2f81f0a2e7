"""The first act: orders are written, each once, although the server is killed on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Final

from fencepost.client.admin import Admin
from fencepost.client.producer import Producer
from fencepost.demo.broker import DemoBroker
from fencepost.demo.narrator import Narrator
from fencepost.demo.timeline import Timeline, Watch

TOPIC: Final = "orders"
PARTITIONS: Final = 3
_CUSTOMERS: Final = 1000
_AT_A_TIME: Final = 5000
_MEMORY: Final = 8 << 20
"""Of the producer: small, so that it cannot hold everything while the server is away."""


def order(number: int) -> tuple[bytes, bytes]:
    """Key and value of an order: what it is made of depends on its number alone."""
    customer = b"customer-%d" % (number * 7919 % _CUSTOMERS)
    return customer, b'{"order":%d,"customer":"%s","cents":%d}' % (number, customer, 100 + number * 31 % 9900)


def number_of(value: bytes) -> int:
    """The order's number, from what was written or from what the Spark job made of it."""
    if value.startswith(b'{"order":'):
        return int(value[9 : value.index(b",")])
    return int(json.loads(value)["order"])


def write(broker: DemoBroker, records: int, narrator: Narrator, timeline: Timeline) -> float:
    """Writes orders 0 … records − 1 and kills the server half-way. Answers how long it took."""
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
    """The answers that were on their way are lost: the producer sends again, and the server has to know it."""
    broker.kill()
    timeline.mark("server killed")
    seconds = broker.start()
    narrator.blow("kill -9", f"the server, after {sent:,} sends; back after {seconds:.2f} s on the same data")


def numbers(found: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, int]]:
    for partition, value in found:
        yield partition, number_of(value)

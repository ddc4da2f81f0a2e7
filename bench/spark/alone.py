"""What our own code takes of the Python workers' time: the same work in this process, without Spark around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bench.spark.plan import PARTITIONS
from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import Target
from fencepost.client.read.ranges import Range, fetch
from fencepost.kernel import CODECS
from fencepost.spark import columns
from fencepost.spark.freeze import Encoder, Encoding

if TYPE_CHECKING:
    import pyarrow as pa

DECODE: Final = "fetch and decode"
ENCODE: Final = "partition and encode"


def seconds(address: str, topic: str) -> dict[str, float]:
    """CPU seconds to read the topic as Arrow, and to freeze what was read."""
    with Admin(address) as admin:
        latest = admin.latest(topic)
    began = time.process_time()
    rows: list[pa.RecordBatch] = []
    with Routes(ClientSettings.of(address)) as routes:
        for partition, stop in latest.items():
            wanted = Range(topic, partition, 0, stop)
            rows += columns.rows(wanted, fetch(routes, wanted), ("key", "value"))
    decoded = time.process_time()
    target = Target("out", PARTITIONS, 1 << 20, compacted=False)
    encoding = Encoding({"out": target}, "out", CODECS["none"], None, 512 << 10, None, None)
    for _ in Encoder(encoding, 0).encode(rows):
        pass
    return {DECODE: decoded - began, ENCODE: time.process_time() - decoded}

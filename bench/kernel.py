"""What the kernel does per second, in one process on one core, beside aiokafka's compiled record classes.

    python -m bench.kernel [--json]

100-byte values with 8-byte keys in batches of 16 KiB; the best of several rounds, since everything else on the machine
only makes a round slower. Each line is millions of records a second.
"""

from __future__ import annotations

import json
import platform
import random
import sys
import time
from collections.abc import Callable
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fencepost import kernel
from fencepost.kernel.arrow import column_source, read_arrow

BATCH_BYTES: Final = 16384
BATCHES: Final = 400
ROUNDS: Final = 7
NOW: Final = 1_700_000_000_000
KEY: Final = b"key-0001"
CODECS: Final = ("none", "lz4")


def values() -> list[bytes]:
    """Half text, half noise: compresses about as well as what people send."""
    chance = random.Random(1)
    return [b"%050d" % chance.randrange(10**6) + chance.randbytes(50) for _ in range(150)]


def filled_builder() -> kernel.BatchBuilder:
    builder = kernel.BatchBuilder()
    cycle = values()
    while builder.append(KEY, cycle[builder.count % len(cycle)], NOW + builder.count) < BATCH_BYTES:
        pass
    return builder


def best(work: Callable[[], int]) -> float:
    """Millions of records a second in the fastest round; `work` says how many it did."""
    fastest = 0.0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        done = work()
        fastest = max(fastest, done / (time.perf_counter() - begun) / 1e6)
    return fastest


def append() -> int:
    builder, value, count = kernel.BatchBuilder(), values()[0], 0
    for _ in range(BATCHES):
        builder.clear()
        add = builder.append
        while add(KEY, value, NOW) < BATCH_BYTES:
            pass
        count += builder.count
    return count


def aiokafka_append() -> int:
    value, count = values()[0], 0
    for _ in range(BATCHES // 4):
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, BATCH_BYTES)
        add, i = builder.append, 0
        while add(i, NOW, KEY, value, []) is not None:
            i += 1
        count += i
    return count


def main() -> None:
    builder = filled_builder()
    plain, per_batch = bytes(builder.build()), builder.count
    table = column_source(read_arrow([plain] * BATCHES))

    def append_columns() -> int:
        target, at = kernel.BatchBuilder(), 0
        while at < table.rows:
            target.clear()
            at = target.append_columns(table, at, table.rows, timestamp=NOW, limit=BATCH_BYTES)
        return at

    def partition() -> int:
        kernel.group_rows(kernel.partition_rows(table, 12), 12)
        return table.rows

    figures = {
        "append, one call a record": best(append),
        "append, aiokafka's compiled builder": best(aiokafka_append),
        "append_columns, from Arrow": best(append_columns),
        "partition_rows and group_rows, from Arrow": best(partition),
    }
    for name in CODECS:
        batch = bytes(builder.build(kernel.CODECS[name]))
        batches = [batch] * BATCHES

        def build(codec: int = kernel.CODECS[name]) -> int:
            for _ in range(BATCHES):
                builder.build(codec, pid=1, epoch=0, base_sequence=0)
            return BATCHES * per_batch

        def decode(batches: list[bytes] = batches) -> int:
            return sum(len(kernel.decode_batch(batch)) for batch in batches)

        def aiokafka_decode(batches: list[bytes] = batches) -> int:
            return sum(len(list(DefaultRecordBatch(batch))) for batch in batches)

        def decode_arrow(batches: list[bytes] = batches) -> int:
            return int(read_arrow(batches).num_rows)

        figures |= {
            f"build, {name}": best(build),
            f"decode_batch, {name}": best(decode),
            f"decode, aiokafka's compiled reader, {name}": best(aiokafka_decode),
            f"read_arrow, {name}": best(decode_arrow),
        }

    if "--json" in sys.argv[1:]:
        print(json.dumps({"machine": platform.platform(), "python": platform.python_version(), "figures": figures}))
        return
    print(f"kernel: {kernel.IMPLEMENTATION}, Python {platform.python_version()}, {per_batch} records a batch")
    for what, figure in figures.items():
        print(f"{figure:8.2f} M records/s  {what}")


if __name__ == "__main__":
    main()

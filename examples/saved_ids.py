"""A job that saves input position and producer ids in one file: killed anywhere, it writes every record once (IDEM-4).

    python examples/saved_ids.py SERVERS SOURCE TARGET FILE

It reads SOURCE from the saved position, writes a result per record to TARGET, and every few records saves the input
position and the producer's ids in FILE, with one atomic rename. After a kill it resumes at the last save: it reads and
sends the later records again, and the producer leaves out those that TARGET already has. For that, the same records
must go to each partition of TARGET in the same order. So a result depends on its input record alone, and each partition
of TARGET gets its records from one partition of SOURCE.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from fencepost import Admin, FencepostError, Producer, ProducerIds, Reader

Position: TypeAlias = dict[int, int]
"""Partition → the next offset to read."""

SAVE_EVERY = 5


def load(path: Path) -> tuple[Position, ProducerIds | None]:
    if not path.exists():
        return {}, None
    saved = json.loads(path.read_text())
    return {int(partition): at for partition, at in saved["position"].items()}, ProducerIds.from_json(saved["ids"])


def save(path: Path, position: Position, ids: ProducerIds) -> None:
    """Save both atomically, also if another process that believes to be this one saves at the same time."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with new.open("w") as file:
        json.dump({"position": position, "ids": ids.to_json()}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def run(servers: str, source: str, target: str, path: Path) -> Iterator[str]:
    """Run the job up to the present end of the source. Yield the name of each step after it."""
    position, ids = load(path)
    if not position:
        with Admin(servers) as admin:
            position = {partition: int(at) for partition, at in admin.earliest(source).items()}
    name = f"saved-ids-{source}-{target}"
    with Producer(servers, ids=ids) if ids is not None else Producer(servers, name=name) as producer:
        if ids is None:
            save(path, position, producer.ids)  # before the first record: a restart needs the ids
        yield "began"
        with Reader(servers, source, start=position, stop="latest") as reader:
            for count, record in enumerate(reader, start=1):
                producer.send(target, b"made of " + (record.value or b""), key=record.key, partition=record.partition)
                position[record.partition] = record.offset + 1
                yield "sent"
                if count % SAVE_EVERY == 0:
                    producer.flush()
                    yield "flushed"
                    save(path, position, producer.ids)
                    yield "saved"
        producer.flush()
        save(path, position, producer.ids)
    yield "ended"


if __name__ == "__main__":
    try:
        for step in run(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])):
            print(step)
    except FencepostError as error:
        sys.exit(f"saved ids: {error}")

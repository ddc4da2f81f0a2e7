"""Many processes that write into one transaction which none of them has begun, each to a partition of its own.

    python -m tests.workers.shared_writers    (a job as JSON on stdin, a line of JSON per process on stdout)

The processes are forked from this one, so that fifty of them need not load the same code fifty times; nothing else is
shared: each has its own connection and knows only what the job says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fencepost.errors import ErrorCode
from fencepost.kernel.header import TRANSACTIONAL
from tests.support.batches import batch
from tests.support.transactions import TransactionalProducer, TransactionClient

_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Job:
    address: str
    name: str
    pid: int
    epoch: int
    topic: str
    writers: int
    batches: int
    mark: str = ""


def value(job: Job, partition: int, number: int) -> bytes:
    return f"{job.mark}{partition}:{number}".encode()


def run(job: Job) -> dict[int, dict[str, Any]]:
    """What each writer was answered, by partition."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.workers.shared_writers"],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        cwd=_ROOT,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {report.pop("partition"): report for report in reports}


def write(job: Job, partition: int) -> dict[str, Any]:
    """One writer's work, as the exactly-once sink does it: the first batch alone, the others pipelined."""
    producer = TransactionalProducer(job.name, job.pid, job.epoch)
    now = int(time.time() * 1000)  # one for all: a repeated batch must have the same bytes

    def one(number: int, epoch: int = job.epoch) -> bytes:
        values = [value(job, partition, number)]
        return batch(values, pid=job.pid, epoch=epoch, sequence=number, timestamps=[now], attributes=TRANSACTIONAL)

    with TransactionClient(job.address, timeout=120) as client:
        answers = [client.write(producer, job.topic, [value(job, partition, 0)], partition=partition, sequence=0)]
        for number in range(1, job.batches):
            client.send_transactional(job.topic, one(number), name=job.name, partition=partition)
        answers += [client.receive_produced() for _ in range(1, job.batches)]

        def again(data: bytes) -> Any:
            client.send_transactional(job.topic, data, name=job.name, partition=partition)
            return client.receive_produced()

        return {
            "partition": partition,
            "codes": [ErrorCode.of(answer.error).name for answer in answers],
            "offsets": [answer.base_offset for answer in answers],
            "repeated": again(one(job.batches - 1)).base_offset,
            "gap": again(one(job.batches + 1)).error.name,
            "zombie": again(one(job.batches, job.epoch - 1)).error.name,
        }


def main() -> None:
    job = Job(**json.load(sys.stdin))
    children = {}
    for partition in range(job.writers):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                line = json.dumps(write(job, partition)) + "\n"
                os.write(1, line.encode())  # one write: lines of different processes do not mix
                code = 0
            finally:
                os._exit(code)
        children[child] = partition
    failed = [children[child] for child in children if os.waitpid(child, 0)[1] != 0]
    if failed:
        raise SystemExit(f"writers of partitions {failed} failed")


if __name__ == "__main__":
    main()

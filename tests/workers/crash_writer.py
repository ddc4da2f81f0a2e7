"""The writer of the crash tests: a process that sends numbered records and notes what was acknowledged.

    python -m tests.workers.crash_writer HOST:PORT TOPIC PARTITIONS JOURNAL SEED

One idempotent producer over the raw protocol, with its own bookkeeping. Record n of a partition carries the number n,
and since nobody else writes there it must come to lie at offset n: a record that is lost or doubled shows at once as an
acknowledgement with another offset. After a lost connection it sends what was not acknowledged again, byte for byte
with the same sequences, and goes on. It ends when its journal's folder has a file `stop`.

The journal, one line each, flushed before anything else is done:

    up                           connected; nothing was sent before this line
    down                         the connection ended, and all that came on it has been read
    ack PARTITION FIRST COUNT    records FIRST … FIRST + COUNT − 1 are acknowledged
    fault TEXT                   an answer that must not be; the writer ends
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from fencepost.core.producers.sequence import MAX_SEQUENCE, advance
from fencepost.errors import ErrorCode
from fencepost.types import Sequence
from tests.support.batches import batch
from tests.support.raw import ConnectionEnded, RawClient

IN_FLIGHT_PER_PARTITION: Final = 5
LARGEST_BATCH: Final = 20
BURST: Final = 300
"""So many batches of a connection are written as fast as they can be; later ones with a pause before each round, so
that a server that lives longer is still written to when it is killed, but the log stays small enough to be read every
time."""
FIRST_SEQUENCES: Final = (Sequence(0), Sequence(MAX_SEQUENCE - 1000))
"""Every other partition begins shortly before the wrap, so that kills happen around it too."""


def value_of(partition: int, number: int) -> bytes:
    return b"%d-%d" % (partition, number) + b"." * (number * 7919 % 200)


class Unsettled(NamedTuple):
    first: int
    records: int
    data: bytes


class Fault(Exception):
    """The server broke its promise."""


class Writer:
    def __init__(self, address: str, topic: str, partitions: int, journal: TextIO, seed: int) -> None:
        self._address = address
        self._topic = topic
        self._journal = journal
        self._dice = random.Random(seed)
        self._pid = -1
        self._next = [0] * partitions
        self._unsettled: list[deque[Unsettled]] = [deque() for _ in range(partitions)]

    def run(self, stop: Path) -> None:
        while not stop.exists():
            try:
                client = RawClient(self._address, timeout=60)
            except OSError:
                time.sleep(0.005)  # the server is down; nothing tells when it is up again
                continue
            self._note("up")
            try:
                with client:
                    self._write(client, stop)
            except (ConnectionEnded, OSError):
                self._note("down")

    def _write(self, client: RawClient, stop: Path) -> None:
        if self._pid < 0:
            # The writer begins near the wrap, which a pid that this server has issued may not.
            self._pid = (1 << 40) + client.new_pid()
        sent: deque[int] = deque()
        in_flight = [0] * len(self._next)
        for partition, unsettled in enumerate(self._unsettled):
            for again in unsettled:
                client.send_produce(self._topic, again.data, partition=partition)
                sent.append(partition)
                in_flight[partition] += 1
        acknowledged = 0
        while not stop.exists() or sent:
            if not stop.exists():
                if acknowledged > BURST:
                    time.sleep(0.002)
                for partition, flying in enumerate(in_flight):
                    if flying < IN_FLIGHT_PER_PARTITION:
                        client.send_produce(self._topic, self._new(partition).data, partition=partition)
                        sent.append(partition)
                        in_flight[partition] += 1
            partition = sent.popleft()
            produced = client.receive_produced()
            settled = self._unsettled[partition][0]
            if produced[:2] != (ErrorCode.NONE, settled.first):
                raise Fault(f"partition {partition}, records from {settled.first} on: {produced}")
            self._unsettled[partition].popleft()
            in_flight[partition] -= 1
            acknowledged += 1
            self._note(f"ack {partition} {settled.first} {settled.records}")

    def _new(self, partition: int) -> Unsettled:
        first, count = self._next[partition], self._dice.randint(1, LARGEST_BATCH)
        sequence = advance(FIRST_SEQUENCES[partition % len(FIRST_SEQUENCES)], first)
        values = [value_of(partition, number) for number in range(first, first + count)]
        unsettled = Unsettled(first, count, batch(values, pid=self._pid, epoch=0, sequence=sequence))
        self._next[partition] += count
        self._unsettled[partition].append(unsettled)
        return unsettled

    def _note(self, line: str) -> None:
        self._journal.write(line + "\n")
        self._journal.flush()


def main() -> None:
    address, topic, partitions, journal_path, seed = sys.argv[1:]
    with Path(journal_path).open("a") as journal:
        try:
            Writer(address, topic, int(partitions), journal, int(seed)).run(Path(journal_path).with_name("stop"))
        except Fault as fault:
            journal.write(f"fault {fault}\n")
            sys.exit(1)


if __name__ == "__main__":
    main()

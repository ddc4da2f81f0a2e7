"""The third act: a writer that owns a partition is stopped, replaced, and wakes up; its writes are rejected.

The topic is guarded: the server accepts writes only on the connection that owns the partition. The first writer is this
module as a process: `python -m fencepost.demo.takeover SERVERS TOPIC GROUP`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fencepost
from fencepost.client.admin_client import Admin
from fencepost.demo.children import Child, end_with_parent, tell
from fencepost.demo.narrator import Narrator
from fencepost.demo.picture import Timeline, Watch
from fencepost.errors import FencepostError, SendFailed

TOPIC: Final = "ledger"
GROUP: Final = "ledger-writers"
_SECONDS: Final = 0.8
"""How long each writes; the successor twice, before and after the first one wakes up."""
_SECONDS_TO_WAIT: Final = 60.0
_AT_A_TIME: Final = 200


@dataclass(frozen=True, slots=True)
class TakeoverResult:
    acknowledged: int
    unknown: int
    refused: int
    successor: int
    """Records of the successor, all acknowledged."""


def run(address: str, folder: Path, narrator: Narrator, timeline: Timeline) -> TakeoverResult:
    with Admin(address) as admin:
        admin.create_topic(TOPIC, 1, configs={"fencepost.writer.group": GROUP})
    out = folder / "ledger.jsonl"
    with (
        Child("fencepost.demo.takeover", address, TOPIC, GROUP, out=out, errors=folder / "ledger.log") as first,
        Watch(timeline, "ledger lines, by A", address, TOPIC) as watch,
        fencepost.Producer(address, linger=0) as second,
    ):
        owned = _told(first, out, 0)
        narrator.say("writer A", f"owns {TOPIC}-0, generation {owned['generation']}, and writes")
        _until_written(address)
        first.signal(signal.SIGSTOP)
        timeline.mark("A stopped")
        narrator.blow("SIGSTOP", "A is paused in the middle of a write: is it dead? Nobody can know")
        claim = second.own(GROUP, [f"{TOPIC}-0"], generation=owned["generation"])
        watch.row = "ledger lines, by B"
        timeline.mark("B takes over")
        narrator.say("writer B", f"takes over: generation {claim.generation}, token {claim.token}")
        written = _write(second, 0)
        first.signal(signal.SIGCONT)
        timeline.mark("A wakes up")
        written = _write(second, written)
        fenced = _told(first, out, 1)
    narrator.blow("SIGCONT", f"A wakes up and goes on: {fenced['refused']:,} writes refused, A is fenced and stops")
    return TakeoverResult(fenced["acknowledged"], fenced["unknown"], fenced["refused"], written)


def _write(producer: fencepost.Producer, number: int) -> int:
    """Write from `number` on for a while, until all is acknowledged; return the next number."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        for _ in range(_AT_A_TIME):
            producer.send(TOPIC, b"B %d" % number, partition=0)
            number += 1
        producer.flush()
    return number


def _until_written(address: str) -> None:
    """Wait until the first writer has written for a while."""
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    with Admin(address) as admin:
        began = time.monotonic()
        while time.monotonic() < began + _SECONDS or not admin.latest(TOPIC)[0]:
            if time.monotonic() > deadline:
                raise FencepostError("the first writer of the ledger has written nothing")
            time.sleep(0.02)


def _told(child: Child, out: Path, index: int) -> dict[str, Any]:
    """Return the child's output line number `index`."""
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    while time.monotonic() < deadline:
        ended = child.ended
        lines = out.read_text().splitlines(keepends=True)
        if len(lines) > index and lines[index].endswith("\n"):
            told: dict[str, Any] = json.loads(lines[index])
            return told
        if ended:
            break
        time.sleep(0.01)
    raise FencepostError(f"the first writer of the ledger failed: {child.complaints() or 'it printed no error'}")


def lines(found: Iterable[tuple[int, bytes]]) -> Iterator[tuple[str, int]]:
    """Yield (writer, number) of each line of the ledger."""
    for _, value in found:
        writer, number = value.split()
        yield writer.decode(), int(number)


def write_until_fenced(servers: str, topic: str, group: str) -> None:
    """Own the partition and write to it until fenced: the first writer, a process of its own. Print a line of JSON when
    it owns the partition, and another when it is fenced, with the outcome of its records."""
    end_with_parent()
    fates: Counter[str] = Counter()
    fenced = False
    producer = fencepost.Producer(servers, linger=0)
    claim = producer.own(group, [f"{topic}-0"], generation=1)
    tell(event="owns", generation=claim.generation, token=claim.token)
    number = 0
    while not fenced:
        tickets = []
        for _ in range(_AT_A_TIME):
            try:
                tickets.append(producer.send(topic, b"A %d" % number, partition=0))
            except fencepost.Fenced:  # the producer already knows, and does not send
                fates["no"] += 1
                fenced = True
            number += 1
        for ticket in tickets:
            error = ticket.exception()
            fates[_fate(error)] += 1
            fenced = fenced or isinstance(error, fencepost.Fenced)
    tell(event="fenced", acknowledged=fates["yes"], refused=fates["no"], unknown=fates["unknown"])


def _fate(error: FencepostError | None) -> str:
    """Return whether the record is in the log: yes, no, unknown."""
    if error is None:
        return "yes"
    return error.persisted if isinstance(error, SendFailed) else "unknown"


if __name__ == "__main__":
    write_until_fenced(*sys.argv[1:])

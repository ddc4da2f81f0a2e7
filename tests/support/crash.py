"""Kills a server again and again while it is written to, tears its logs' tails, and counts what is lost or doubled.

The arithmetic is simple on purpose: record n of a partition must lie at offset n (see `crash_writer`), so a log is
right if it holds the numbers 0, 1, 2, … without a gap up to at least the last one that was acknowledged. What was once
acknowledged and found must be there byte for byte after every later crash.

What may be torn: with `kill -9` the operating system keeps every byte that was written, so nothing that was
acknowledged can disappear. A crash can leave more than that behind, though: half a batch, zeros, garbage, a stale
index. That is what `tear` makes, and it also takes away bytes that were written but neither acknowledged nor covered by
a snapshot (which is written only after a sync).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from crc32c import crc32c

from fencepost.errors import ErrorCode, FencepostError
from fencepost.kernel import Record, check_batch, decode_batch, read_header
from tests.support.batches import batch
from tests.support.kafka import answers
from tests.support.process import Child, free_port, stop
from tests.support.raw import RawClient
from tests.workers.crash_writer import value_of

PATIENCE: Final = 60.0
PIECE: Final = 8 << 20
Tear: TypeAlias = Literal["nothing", "random bytes", "zeros", "half a batch", "bad checksum", "old batch", "cut"]
TEARS: Final[tuple[Tear, ...]] = (
    "nothing", "random bytes", "zeros", "half a batch", "bad checksum", "old batch", "cut", "cut",
)  # fmt: skip


class ServerProcess:
    """`fencepost serve` on one data directory and one port, over and over."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        self._child: Child | None = None

    def start(self, sync: str) -> None:
        command = [
            sys.executable,
            "-m",
            "fencepost",
            "serve",
            "--data",
            str(self.data),
            "--listen",
            self.address,
            "--no-http",
        ]
        self._child = Child([*command, "--sync", sync, "--no-auto-create"], log=self._log)

    def await_ready(self) -> None:
        await_that(lambda: self._is_alive() and answers(self.port), lambda: f"the server is not up:\n{self.output()}")

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end of the block."""
        assert self._child is not None
        stop(self._child.pid)
        try:
            yield
        finally:
            os.kill(self._child.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def stop(self) -> int:
        assert self._child is not None
        code = self._child.stop()
        self._child = None
        return code

    def output(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _is_alive(self) -> bool:
        assert self._child is not None
        assert self._child.exit_code is None, f"the server ended by itself:\n{self.output()}"
        return True


class Journal:
    """What the writer has noted so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: dict[int, int] = {}
        """Per partition: all records below this number are acknowledged."""
        self.connected = False
        self.faults: list[str] = []
        self._read = 0

    def refresh(self) -> None:
        with self.path.open() as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]  # a line being written is left for next time
        self._read += len(whole.encode())
        for line in whole.splitlines():
            what, _, rest = line.partition(" ")
            if what == "ack":
                partition, first, count = map(int, rest.split())
                if first != self.acknowledged.get(partition, 0):
                    self.faults.append(f"partition {partition}: {first} acknowledged out of turn")
                self.acknowledged[partition] = first + count
            elif what == "fault":
                self.faults.append(rest)
            else:
                self.connected = what == "up"

    @property
    def total(self) -> int:
        return sum(self.acknowledged.values())


class Checked:
    """One partition's log as found so far, and what is wrong with it."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.end = 0
        """Up to here records were acknowledged and found; what is there must never change again."""
        self.checksum = 0
        self.lost = 0
        self.doubled = 0
        self.changed = 0

    def check(self, client: RawClient, topic: str, acknowledged: int) -> None:
        """Reads the whole log; every record must carry the number of its offset, up to `acknowledged` at least."""
        offset, checksum = 0, 0
        new_end, new_checksum = self.end, self.checksum
        end = client.end_offset(topic, self.partition)  # the writer goes on meanwhile; its newest is for the next check
        while offset < end:
            fetched = client.fetch(topic, offset, partition=self.partition, partition_max_bytes=PIECE)
            assert fetched.error is ErrorCode.NONE, fetched.error
            at = 0
            while at < len(fetched.data):
                header = check_batch(fetched.data, at)
                assert header.base_offset == offset, f"batch at {header.base_offset}, expected {offset}"
                checksum = crc32c(fetched.data[at : at + header.size], checksum)
                offset = header.next_offset
                if offset == self.end and checksum != self.checksum:
                    self.changed += 1
                if offset > self.end:
                    self._count(decode_batch(fetched.data, at))
                if self.end < offset <= acknowledged:
                    new_end, new_checksum = offset, checksum
                at += header.size
        self.lost += max(0, acknowledged - offset)
        self.end, self.checksum = new_end, new_checksum

    def _count(self, records: list[Record]) -> None:
        for record in records:
            if record.value != value_of(self.partition, record.offset):
                number = int((record.value or b"").partition(b"-")[2].rstrip(b"."))
                self.doubled += number < record.offset
                self.lost += number >= record.offset


def await_that(condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    """Polls: what is awaited happens in another process, which tells nobody."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.002)


def partition_folders(data: Path, partitions: int) -> list[Path]:
    """The folders of the one topic there is, by partition; fewer if they were not made yet."""
    return [folder for index in range(partitions) for folder in data.glob(f"logs/*/{index}")]


def tear(folder: Path, acknowledged: int, dice: random.Random) -> Tear:
    """Spoils the end of a partition's newest segment, as a crash might."""
    segments = sorted(folder.glob("*.log"))
    how = dice.choice(TEARS)
    if not segments:
        return "nothing"
    newest = segments[-1]
    data = newest.read_bytes()
    whole = _whole_batches(data)
    next_offset = read_header(data, whole[-1]).next_offset if whole else int(newest.stem)
    end = whole[-1] + read_header(data, whole[-1]).size if whole else 0
    some = batch([b"never acknowledged" * 10] * dice.randint(1, 5), base_offset=next_offset)
    if how == "random bytes":
        newest.write_bytes(data[:end] + dice.randbytes(dice.randint(1, 3000)))
    elif how == "zeros":
        newest.write_bytes(data[:end] + bytes(dice.randint(1, 5000)))
    elif how == "half a batch":
        newest.write_bytes(data[:end] + some[: dice.randrange(1, len(some))])
    elif how == "bad checksum":
        newest.write_bytes(data[:end] + some[:-1] + bytes([some[-1] ^ 0xFF]))
    elif how == "old batch" and whole:
        newest.write_bytes(data[:end] + data[whole[0] : whole[0] + read_header(data, whole[0]).size])
    elif how == "cut":
        safe = max([acknowledged, *(int(snapshot.stem) for snapshot in folder.glob("*.snapshot"))])
        kept = sum(read_header(data, at).size for at in whole if read_header(data, at).base_offset < safe)
        newest.write_bytes(data[: dice.randint(kept, len(data))])
    for index in folder.glob(f"{newest.stem}.*index"):
        if dice.random() < 0.3:  # an index is derived from the log: it may say anything
            index.write_bytes(index.read_bytes()[: dice.randrange(64)] + dice.randbytes(dice.randrange(40)))
    return how


def _whole_batches(data: bytes) -> list[int]:
    """Where the batches start that a recovery would keep: whole, checksum right, one offset after the other."""
    places, at, expected = [], 0, None
    while at < len(data):
        try:
            header = check_batch(data, at)
        except FencepostError:  # the tear of an earlier kill, if the server did not live long enough to mend it
            break
        if expected is not None and header.base_offset != expected:
            break
        places.append(at)
        at += header.size
        expected = header.next_offset
    return places


class CrashTest:
    """One writer, one server, many kills."""

    def __init__(self, folder: Path, seed: int, *, partitions: int = 4, topic: str = "numbers") -> None:
        self.server = ServerProcess(folder)
        self.journal = Journal(folder / "journal")
        self.kills = 0
        self.tears: dict[Tear, int] = {}
        self._folder = folder
        self.seed = seed
        self._dice = random.Random(seed)
        self._topic = topic
        self._checked = [Checked(partition) for partition in range(partitions)]

    def run(self, kills: int) -> None:
        with self.server:
            self._run(kills)

    def _run(self, kills: int) -> None:
        self.server.start("os")
        self.server.await_ready()
        with RawClient(self.server.address) as client:
            # Small segments, so that kills meet the moment when one is closed and the next begun.
            client.create_topic(self._topic, len(self._checked), {"segment.bytes": "60000"})
        writer = self._start_writer()
        try:
            while self.kills < kills:
                self._await_progress(writer)
                time.sleep(self._dice.random() * 0.25)  # the moment of the kill is what is random here
                self._kill(writer)
                self._restart(writer)
            (self._folder / "stop").touch()
            assert writer.wait() == 0, self._said(writer)
        finally:
            writer.kill()
        self._check(writer)
        assert self.server.stop() == 0, self.server.output()
        self.server.start("os")  # a clean stop and start must change nothing either
        self.server.await_ready()
        self._check(writer)

    def summary(self) -> str:
        torn = ", ".join(f"{how} {count}" for how, count in sorted(self.tears.items()))
        return (
            f"seed {self.seed}: {self.kills} kills, {self.journal.total} records acknowledged, "
            f"lost {self.lost}, doubled {self.doubled} (tails: {torn})"
        )

    @property
    def lost(self) -> int:
        return sum(partition.lost for partition in self._checked)

    @property
    def doubled(self) -> int:
        return sum(partition.doubled for partition in self._checked)

    @property
    def changed(self) -> int:
        return sum(partition.changed for partition in self._checked)

    def _start_writer(self) -> Child:
        self.journal.path.touch()
        module = [sys.executable, "-m", "tests.workers.crash_writer"]
        what = [self.server.address, self._topic, str(len(self._checked)), str(self.journal.path), str(self.seed)]
        root = Path(__file__).parent.parent.parent
        return Child([*module, *what], log=self._folder / "writer.log", env={"PYTHONPATH": str(root)})

    def _kill(self, writer: Child) -> None:
        self.server.kill()
        self.kills += 1
        # Acknowledgements that were under way are read by the writer first; only what is left is unacknowledged.
        self._await(writer, lambda: not self.journal.connected)
        for partition, folder in enumerate(partition_folders(self.server.data, len(self._checked))):
            how = tear(folder, self.journal.acknowledged.get(partition, 0), self._dice)
            self.tears[how] = self.tears.get(how, 0) + 1

    def _restart(self, writer: Child) -> None:
        if self._dice.random() < 0.25:  # killed once more while it starts, or just after
            self.server.start(self._dice.choice(["os", "always"]))
            time.sleep(self._dice.random() * 0.6)
            self._kill(writer)
        self.server.start(self._dice.choice(["os", "always"]))
        self.server.await_ready()
        self._check(writer)

    def _check(self, writer: Child) -> None:
        self._refresh(writer)
        acknowledged = dict(self.journal.acknowledged)
        with RawClient(self.server.address) as client:
            for checked in self._checked:
                checked.check(client, self._topic, acknowledged.get(checked.partition, 0))
        assert (self.lost, self.doubled, self.changed) == (0, 0, 0), self.summary()

    def _await_progress(self, writer: Child) -> None:
        before = self.journal.total
        self._await(writer, lambda: self.journal.total > before)

    def _await(self, writer: Child, condition: Callable[[], bool]) -> None:
        def met() -> bool:
            self._refresh(writer)
            return condition()

        await_that(met, lambda: f"nothing happens after {self.summary()}\n{self._said(writer)}\n{self.server.output()}")

    def _refresh(self, writer: Child) -> None:
        self.journal.refresh()
        assert not self.journal.faults, f"{self.summary()}\n{self.journal.faults}"
        assert writer.exit_code in (None, 0), self._said(writer)

    def _said(self, writer: Child) -> str:
        return f"the writer ended with {writer.exit_code} and said:\n{writer.output()}"

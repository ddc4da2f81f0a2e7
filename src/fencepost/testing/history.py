"""A checker of what clients saw against the guarantees of transactions.

Clients note their events in a `Recorder`, a file with one JSON line per event, which survives a kill. `History` reads
the files of all clients, and `check` compares them with the committed records that are in the log at the end:

- **lost**: a write whose commit was acknowledged, or that a reader has seen, is missing; a reader has skipped a
  committed record; work that counts as done has left no record
- **aborted read**: a write of an aborted transaction is in the log, or a reader of committed records has seen it
- **torn**: only some writes of a transaction with an unknown outcome are in the log
- **duplicate**: a write, or a piece of work, is in the log twice; a reader got the same offset twice
- **reordered**: the writes of one process to one partition are in another order; a reader's offsets go back
- **changed**: an offset had different values at different times
- **phantom**: a record that nobody has written

The rules are those of Kafka's transactions: a transaction becomes visible partition by partition, so a reader may see
one part of it before the other. Nothing is assumed about the order of different processes.

Every write needs a unique value. `work` is its purpose (for example the input record that was copied): a second attempt
at the same work is another write with another value, and only one of them may be in the log.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from fencepost.types import Offset, TopicPartition

Kind: TypeAlias = Literal["lost", "aborted read", "torn", "duplicate", "reordered", "changed", "phantom"]
Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]
Log: TypeAlias = Mapping[TopicPartition, Sequence[tuple[Offset, str]]]
"""The committed records at the end, by partition, in the order of their offsets."""

_SHOWN: Final = 20


class RecordedWrite(NamedTuple):
    partition: TopicPartition
    value: str
    work: str | None = None


class Read(NamedTuple):
    partition: TopicPartition
    offset: Offset
    value: str


@dataclass(slots=True)
class RecordedTransaction:
    """One attempt of one process; a write outside of transactions counts as a transaction."""

    process: str
    writes: list[RecordedWrite] = field(default_factory=list)
    outcome: Outcome = "unknown"


class Anomaly(NamedTuple):
    kind: Kind
    what: str


@dataclass(slots=True)
class Report:
    transactions: Counter[Outcome] = field(default_factory=Counter)
    writes: int = 0
    reads: int = 0
    records: int = 0
    """The committed records in the log at the end."""
    faults: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)

    def of(self, kind: Kind) -> list[str]:
        return [anomaly.what for anomaly in self.anomalies if anomaly.kind == kind]

    def __str__(self) -> str:
        ended = ", ".join(f"{self.transactions[outcome]} {outcome}" for outcome in ("committed", "aborted", "unknown"))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items())) or "none"
        lines = [
            f"operations: {self.transactions.total()} transactions ({ended}), {self.writes} writes, {self.reads} reads",
            f"log: {self.records} committed records",
            f"faults: {faults}",
            f"anomalies: {len(self.anomalies)}",
        ]
        lines += [f"  {anomaly.kind}: {anomaly.what}" for anomaly in self.anomalies[:_SHOWN]]
        if len(self.anomalies) > _SHOWN:
            lines.append(f"  … and {len(self.anomalies) - _SHOWN} more")
        return "\n".join(lines)


class Recorder:
    """The notes of one process. Each line is written at once and before the next action, so a kill loses at most the
    current line; a transaction that is noted neither as committed nor as aborted counts as unknown."""

    def __init__(self, path: str | os.PathLike[str], process: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._process = process

    def begin(self) -> None:
        self._note("begin")

    def send(self, topic: str, partition: int, value: str, work: str | None = None) -> None:
        self._note("send", topic, partition, value, work)

    def committed(self) -> None:
        """Note that the commit was acknowledged."""
        self._note("committed")

    def aborted(self) -> None:
        """Note that the abort was acknowledged, or that the commit certainly failed."""
        self._note("aborted")

    def read(self, topic: str, partition: int, offset: int, value: str) -> None:
        self._note("read", topic, partition, offset, value)

    def fault(self, name: str) -> None:
        self._note("fault", name)

    def close(self) -> None:
        os.close(self._fd)

    def _note(self, what: str, *details: Any) -> None:
        os.write(self._fd, (json.dumps([self._process, what, *details]) + "\n").encode())


class History:
    """The notes of all processes: in order for each process, without an order between processes."""

    def __init__(self) -> None:
        self.transactions: list[RecordedTransaction] = []
        self.reads: dict[str, list[Read]] = {}
        self.faults: Counter[str] = Counter()
        self._open: dict[str, RecordedTransaction] = {}

    @classmethod
    def load(cls, paths: Iterable[Path]) -> Self:
        history = cls()
        for path in paths:
            text = path.read_text()
            for line in text[: text.rfind("\n") + 1].splitlines():
                history.note(*json.loads(line))
        return history

    def note(self, process: str, what: str, *details: Any) -> None:
        if what == "begin":
            self._open[process] = RecordedTransaction(process)
            self.transactions.append(self._open[process])
        elif what == "send":
            topic, partition, value, work = details
            self._open[process].writes.append(RecordedWrite(TopicPartition(topic, partition), value, work))
        elif what == "committed":
            self._open.pop(process).outcome = "committed"
        elif what == "aborted":
            self._open.pop(process).outcome = "aborted"
        elif what == "read":
            topic, partition, offset, value = details
            read = Read(TopicPartition(topic, partition), Offset(offset), value)
            self.reads.setdefault(process, []).append(read)
        elif what == "fault":
            self.faults[details[0]] += 1
        else:
            raise ValueError(f"{process} noted the unknown event {what!r}")


def check(history: History, log: Log, *, done: Collection[str] = ()) -> Report:
    """Check the history. `log`: all committed records, read after all clients stopped. `done`: work that must be
    there."""
    judge = _Judge(history, log)
    report = Report(
        transactions=Counter(transaction.outcome for transaction in history.transactions),
        writes=len(judge.writes),
        reads=sum(map(len, history.reads.values())),
        records=sum(map(len, log.values())),
        faults=history.faults,
    )
    for rule in (
        judge.transactions_are_whole,
        judge.nothing_is_there_twice,
        judge.processes_are_in_order,
        judge.readers_saw_the_log,
        judge.offsets_do_not_change,
    ):
        report.anomalies += rule()
    there = {write.work for value, write in judge.writes.items() if value in judge.places}
    report.anomalies += [Anomaly("lost", f"work {work} left no record") for work in sorted(set(done) - there)]
    return report


class _Judge:
    def __init__(self, history: History, log: Log) -> None:
        self._history = history
        self._log = log
        self.writes: dict[str, RecordedWrite] = {}
        self._transaction_of: dict[str, RecordedTransaction] = {}
        for transaction in history.transactions:
            for write in transaction.writes:
                if write.value in self.writes:
                    raise ValueError(f"{write.value!r} was written twice: every write needs a unique value")
                self.writes[write.value] = write
                self._transaction_of[write.value] = transaction
        self.places: dict[str, list[tuple[TopicPartition, Offset]]] = {}
        for partition, records in log.items():
            for offset, value in records:
                self.places.setdefault(value, []).append((partition, offset))

    def transactions_are_whole(self) -> Iterator[Anomaly]:
        for transaction in self._history.transactions:
            missing = [write for write in transaction.writes if write.value not in self.places]
            found = [write for write in transaction.writes if write.value in self.places]
            who = f"a transaction of {transaction.process}"
            if transaction.outcome == "committed":
                for write in missing:
                    yield Anomaly("lost", f"{write.value} in {write.partition}, of {who} that was committed")
            elif transaction.outcome == "aborted":
                for write in found:
                    yield Anomaly("aborted read", f"{write.value} is in {write.partition}, of {who} that was aborted")
            elif missing and found:
                yield Anomaly("torn", f"{who}: {found[0].value} is there, {missing[0].value} is not")

    def nothing_is_there_twice(self) -> Iterator[Anomaly]:
        for value, places in self.places.items():
            if len(places) > 1:
                where = ", ".join(f"{partition} at {offset}" for partition, offset in places)
                yield Anomaly("duplicate", f"{value} is in {where}")
        by_work: dict[str, list[str]] = {}
        for value, write in self.writes.items():
            if write.work is not None and value in self.places:
                by_work.setdefault(write.work, []).append(value)
        for work, values in by_work.items():
            if len(values) > 1:
                yield Anomaly("duplicate", f"work {work} was done by {' and '.join(values)}")

    def processes_are_in_order(self) -> Iterator[Anomaly]:
        """Check that the writes of each process to a partition are in order."""
        last: dict[tuple[str, TopicPartition], tuple[Offset, str]] = {}
        for transaction in self._history.transactions:
            for write in transaction.writes:
                for partition, offset in self.places.get(write.value, ()):
                    before = last.get((transaction.process, partition))
                    if before is not None and before[0] >= offset:
                        yield Anomaly("reordered", f"{write.value} was sent after {before[1]}, but lies before it")
                    last[transaction.process, partition] = (offset, write.value)

    def readers_saw_the_log(self) -> Iterator[Anomaly]:
        for reader, reads in self._history.reads.items():
            seen: dict[TopicPartition, set[Offset]] = {}
            last: dict[TopicPartition, Offset] = {}
            for partition, offset, value in reads:
                offsets = seen.setdefault(partition, set())
                if offsets and offset <= last[partition]:
                    kind: Kind = "duplicate" if offset in offsets else "reordered"
                    yield Anomaly(kind, f"{reader} was given {partition} {offset} after {last[partition]}")
                offsets.add(offset)
                last[partition] = offset
                yield from self._judge_read(reader, partition, offset, value)
            for partition, offsets in seen.items():
                yield from self._passed_over(reader, partition, offsets)

    def _judge_read(self, reader: str, partition: TopicPartition, offset: Offset, value: str) -> Iterator[Anomaly]:
        transaction = self._transaction_of.get(value)
        if transaction is None:
            yield Anomaly("phantom", f"{reader} read {value} in {partition} at {offset}, which nobody has written")
        elif transaction.outcome == "aborted":
            yield Anomaly("aborted read", f"{reader} read {value} in {partition}, which was aborted")
        elif value not in self.places:
            yield Anomaly("lost", f"{reader} read {value} in {partition} at {offset}, where it no longer is")

    def _passed_over(self, reader: str, partition: TopicPartition, offsets: set[Offset]) -> Iterator[Anomaly]:
        low, high = min(offsets), max(offsets)
        for offset, value in self._log.get(partition, ()):
            if low < offset < high and offset not in offsets:
                yield Anomaly("lost", f"{reader} passed over {value} in {partition} at {offset}")

    def offsets_do_not_change(self) -> Iterator[Anomaly]:
        values: dict[tuple[TopicPartition, Offset], str] = {}
        for partition, records in self._log.items():
            for offset, value in records:
                values[partition, offset] = value
                if value not in self.writes:
                    yield Anomaly("phantom", f"{value} is in {partition} at {offset}, which nobody has written")
        for reader, reads in self._history.reads.items():
            for partition, offset, value in reads:
                before = values.setdefault((partition, offset), value)
                if before != value:
                    yield Anomaly("changed", f"{partition} at {offset}: {before}, but {reader} read {value} there")

"""Programs around a server whose machine is lost: two producers, a consumer group, a scraper, and the server itself.

Each is a thread that goes on through the crash as its program would, and keeps what it was told.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import confluent_kafka

import fencepost
from tests.support.process import Child, free_port

PARTITIONS: Final = 3
PATIENCE: Final = 300.0
_PER_TRANSACTION: Final = 20
_SIZE: Final = 1000
"""Bytes of a value, so that segments are closed between two backups."""


def _value(label: str, number: int) -> bytes:
    return b"%s-%07d" % (label.encode(), number) + b"." * _SIZE


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the condition; fail with `what` if it does not come true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.05)


def operator(*words: str | Path, expect: int = 0) -> str:
    """Type a command, print what it says as the operator sees it, and return it."""
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", *map(str, words)], capture_output=True, text=True, check=False, timeout=300
    )
    print(f"\n$ fencepost {' '.join(map(str, words))}\n{done.stdout}{done.stderr}", end="")
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


class Machine:
    """`fencepost serve` on fixed ports, with a data directory that can be lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.address = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self._child: Child | None = None
        self._starts = 0

    def start(self) -> None:
        self._starts += 1
        words: list[str | Path] = ["serve", "--data", self.data, "--listen", self.address, "--http", self.http]
        log = self.folder / f"server-{self._starts}.log"
        self._child = child = Child([sys.executable, "-m", "fencepost", *words], log=log)

        def answers() -> bool:
            assert child.exit_code is None, child.output()
            try:
                return get(f"http://{self.http}/readyz")[0] == 200
            except OSError:
                return False

        until(answers, "the server to be ready")

    def lose(self) -> None:
        """kill -9, and the disk is gone."""
        assert self._child is not None
        self._child.kill()
        shutil.rmtree(self.data)

    def stop(self) -> None:
        if self._child is not None and self._child.exit_code is None:
            assert self._child.stop() == 0, self._child.output()


def get(url: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return answer.status, answer.read()


class _Program:
    """A thread that takes turns until it is stopped. Its exception is the test's."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not end"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.begin()
            while not self._stopping.is_set():
                self.turn()
            self.end()
        except BaseException as error:
            self._error = error

    def begin(self) -> None:
        """Make the clients."""

    def turn(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Close the clients."""


class TransactionalWriter(_Program):
    """fencepost's producer, in transactions. When it is fenced, the program starts again, as an operator's would."""

    def __init__(self, address: str, topic: str, name: str, label: str) -> None:
        super().__init__()
        self._address, self._topic, self._name, self._label = address, topic, name, label
        self._number = 0
        self._producer: fencepost.Producer | None = None
        self.acknowledged: list[bytes] = []
        """Values of committed transactions, in order."""
        self.errors: Counter[str] = Counter()

    def turn(self) -> None:
        values = [_value(self._label, self._number + index) for index in range(_PER_TRANSACTION)]
        try:
            if self._producer is None:
                self._producer = fencepost.Producer(self._address, name=self._name)
            with self._producer.transaction():
                for index, value in enumerate(values):
                    self._producer.send(self._topic, value, key=value[:20], partition=index % PARTITIONS)
        except fencepost.FencepostError as error:
            self.errors[type(error).__name__] += 1
            self._close()
            self._number += _PER_TRANSACTION  # its outcome is not known: other values, so that none is written twice
            self._stopping.wait(0.2)
            return
        self._number += _PER_TRANSACTION
        self.acknowledged += values
        self._stopping.wait(0.01)

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close(0)
            except fencepost.FencepostError as error:
                self.errors[f"{type(error).__name__} at close"] += 1

    def end(self) -> None:
        if self._producer is not None:
            self._producer.close()


class PlainWriter(_Program):
    """confluent-kafka's producer as it comes, which retries until the server is back."""

    def __init__(self, address: str, topic: str, label: str) -> None:
        super().__init__()
        self._address, self._topic, self._label = address, topic, label
        self._number = 0
        self.acknowledged: list[bytes] = []
        self.errors: Counter[str] = Counter()

    def begin(self) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self._address, "log_level": 0})

    def turn(self) -> None:
        if len(self._producer) < 500:
            value = _value(self._label, self._number)
            self._number += 1
            self._producer.produce(
                self._topic, value, value[:20], partition=self._number % PARTITIONS, on_delivery=self._delivered
            )
        self._producer.poll(0.002)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors[error.name()] += 1
        else:
            value = message.value()
            assert isinstance(value, bytes)
            self.acknowledged.append(value)

    def end(self) -> None:
        assert self._producer.flush(PATIENCE) == 0


class GroupReader(_Program):
    """A consumer of a group, whose results are stored together with its committed offsets.

    After a restore the program restores its results to the committed offsets, as one does that keeps both in one place:
    `results` forgets what was read behind them."""

    def __init__(self, address: str, topic: str, group: str, results: dict[tuple[int, int], bytes]) -> None:
        super().__init__()
        self._address, self._topic, self._group = address, topic, group
        self.results = results
        """(partition, offset) → value."""
        self.again = 0
        """Records that were read although the results had their offset."""
        self._turn = threading.Lock()
        self._is_cut_off = False
        """The server is about to die: nothing more is committed."""

    def begin(self) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([self._topic])

    def cut_off(self) -> None:
        """Commit nothing from now on: a commit that waits for its answer would wait until the server is back."""
        with self._turn:
            self._is_cut_off = True

    def turn(self) -> None:
        with self._turn:
            self._read_and_commit()

    def _read_and_commit(self) -> None:
        messages = [each for each in self._consumer.consume(200, 0.2) if each.error() is None]
        for message in messages:
            where = (message.partition(), message.offset())
            assert where[0] is not None and where[1] is not None
            self.again += where in self.results
            self.results[where] = message.value()
        if messages and not self._is_cut_off:
            # It fails if the group was rebalanced. What was not committed is read again.
            with contextlib.suppress(confluent_kafka.KafkaException):
                self._consumer.commit(asynchronous=False)

    def end(self) -> None:
        self._consumer.close()


def forget_uncommitted(results: dict[tuple[int, int], bytes], address: str, group: str) -> int:
    """Restore a program's results to the committed offsets. Return how many are forgotten."""
    with fencepost.Admin(address) as admin:
        committed = {each.partition: each.committed or 0 for each in admin.group_offsets(group)}
    forgotten = [where for where in results if where[1] >= committed.get(where[0], 0)]
    for where in forgotten:
        del results[where]
    return len(forgotten)


class Scraper(_Program):
    """Prometheus, in a hurry."""

    def __init__(self, http: str) -> None:
        super().__init__()
        self._http = http
        self.scrapes = 0
        self.seconds: list[float] = []
        self.text = ""

    def turn(self) -> None:
        began = time.perf_counter()
        status, text = get(f"http://{self._http}/metrics")
        self.seconds.append(time.perf_counter() - began)
        assert status == 200
        self.text = text.decode()
        lags = [
            float(line.rpartition(" ")[2])
            for line in self.text.splitlines()
            if line.startswith("kafka_consumergroup_lag{")
        ]
        assert all(lag >= 0 for lag in lags), lags
        self.scrapes += 1
        self._stopping.wait(0.2)


def batches_committed(checkpoint: Path) -> int:
    """The last micro-batch that Spark calls done."""
    return max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())

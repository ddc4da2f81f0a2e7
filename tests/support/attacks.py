"""Attacks on a server with default settings, each with a bystander beside it, and the table of what it felt.

In `make test` attacks are small and what is demanded is coarse: nothing here depends on how fast the machine is. The
long form (`make hostile`) attacks with all it has, demands what users are promised, and prints the table.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

import pytest

from fencepost.errors import ErrorCode
from tests.support.raw import CREATE_TOPICS, RawClient, new_topic
from tests.workers.bystander import Bystander, Seen
from tests.workers.watched_server import LongestTurn, WatchedServer

_PROPERTY: Final = "attack"
BYSTANDERS_TOPIC: Final = "bystander"
TURN: Final = "turn of "
"""Begins the names of rows about one turn of the loop, of which there is one for each list of an API."""
_SHOWN_TURNS: Final = 10
"""The longest ones; `make hostile` shows all."""
MIB: Final = 1024 * 1024
MOST_MEMORY: Final = 1024 * MIB
"""Of the server's process, at its peak."""
LONGEST_WAIT: Final = 0.2
"""Seconds that a bystander's record may take; demanded in the long form only."""

CALM_ANSWERS: Final = 100
"""Of the bystander, in the long form, before each attack: the line to compare the attack with."""
_NOTHING: Final = Seen(0, 0.0, 0)

T = TypeVar("T")


class Row(NamedTuple):
    """A line of the table."""

    attack: str
    longest: float
    answers: int
    seconds: float
    cpu: float
    """Seconds of processor time that the server took: unlike the wait, they hardly depend on what else runs here."""
    peak: int
    turn: float = 0.0
    """Seconds of processor time of the longest turn of the server's loop, if it is watched."""
    queued: float = 0.0
    """Seconds of the longest wait in which nobody but the machine was slow (`Seen.queued`)."""
    calm: float = 0.0
    """The longest wait just before the attack; measured in the long form only."""

    def told(self) -> str:
        """Return the line. A turn has no bystander."""
        waits = [self.calm, self.longest, self.queued] if not self.attack.startswith(TURN) else [0.0] * 3
        calm, longest, queued = (f"{wait * 1000:.0f} ms" if wait else "-" for wait in waits)
        return (
            f"{self.attack:<70} {calm:>7} {longest:>8} {queued:>7} {self.turn * 1000:>3.0f} ms "
            f"{self.peak / MIB:>8.0f} {self.answers:>7} {self.seconds:>5.1f} s {self.cpu:>5.1f} s"
        )


class Attacked(Protocol):
    """A server process."""

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...


class Siege:
    """A server of its own, a bystander that writes to it, and a place to attack from."""

    def __init__(self, server: Attacked, bystander: Bystander, *, long: bool) -> None:
        self.server = server
        self.address = server.address
        self.long = long
        self.rows: list[Row] = []
        self._bystander = bystander
        self._seen = _NOTHING

    def connect(self, timeout: float = 100) -> RawClient:
        return RawClient(self.address, client_id="attacker", timeout=timeout)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """A topic to attack, unless an earlier attack has made it."""
        with self.connect() as client:
            topic = new_topic(name, partitions)
            [row] = client.call(CREATE_TOPICS, 5, topics=[topic], timeout=60_000, validate_only=False).topics
            assert row.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    def size(self, short: T, long: T) -> T:
        """One of the two, by the form of the run."""
        return long if self.long else short

    def linger(self, answers: int) -> None:
        """Keep the attack up until the bystander has got so many more answers."""
        enough = self._seen.answers + answers
        while self._seen.answers < enough:
            self._ask()

    def _ask(self) -> None:
        self._seen = self._seen.and_then(self._bystander.ask())

    @property
    def late_share(self) -> float:
        """The share of the bystander's records during the last attack that took longer than 10 ms."""
        return self._seen.late / self._seen.answers

    def _calm(self) -> float:
        """Forget what the bystander felt so far, and return its longest wait while nobody attacks."""
        self._bystander.ask()
        self._seen = _NOTHING
        if self.long:
            self.linger(CALM_ANSWERS)
        longest, self._seen = self._seen.longest, _NOTHING
        return longest

    @contextmanager
    def attack(self, name: str) -> Iterator[None]:
        """What is done inside is the attack. It must not have hurt the bystander, nor have swollen the server."""
        calm = self._calm()
        watched = self.server if isinstance(self.server, WatchedServer) else None
        if watched is not None:
            watched.longest_turn()
        began, cpu = time.monotonic(), processor_time(self.server.pid)
        yield
        self._ask()
        seen = self._seen
        seconds = time.monotonic() - began
        cpu = processor_time(self.server.pid) - cpu
        turn = watched.longest_turn() if watched is not None else LongestTurn(0.0, "")
        peak = peak_memory(self.server.pid)
        row = Row(name, seen.longest, seen.answers, seconds, cpu, peak, turn.seconds, seen.queued, calm)
        self.rows.append(row)
        print(f"{name}: {row}\n{turn.stack}")
        assert seen.lost == 0, "the bystander was disconnected or refused"
        assert row.peak < MOST_MEMORY, f"the server grew to {row.peak // MIB} MiB"
        # It writes fifty a second when nobody attacks; one in a second is what any machine manages.
        assert seen.answers >= int(seconds), f"the bystander got {seen.answers} answers in {seconds:.1f} s"
        if self.long:
            assert row.longest < LONGEST_WAIT, f"the bystander waited {row.longest:.3f} s"


@contextmanager
def besieged(server: Attacked, request: pytest.FixtureRequest) -> Iterator[Siege]:
    """Let a bystander write to this server, and keep the table of the attacks on it."""
    with RawClient(server.address) as client:
        client.create_topic(BYSTANDERS_TOPIC)
    with Bystander(server.address, BYSTANDERS_TOPIC, server.pid) as bystander:
        siege = Siege(server, bystander, long=request.config.getoption("long_attacks"))
        try:
            yield siege
        finally:
            remember(request.node, siege.rows)


def processor_time(pid: int) -> float:
    """Seconds of processor time that the process has used."""
    behind_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(behind_name[11]) + int(behind_name[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> int:
    """Bytes of memory that the process had at its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM")


def remember(item: pytest.Item, rows: list[Row]) -> None:
    """Lets the test's report carry the rows: under xdist they reach the controller this way."""
    item.user_properties.extend((_PROPERTY, json.dumps(row)) for row in rows)


class Table:
    """The plugin that prints the attacks at the end of a session; registered in the controller only."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._rows += [Row(*json.loads(str(text))) for name, text in report.user_properties if name == _PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._rows:
            return
        terminalreporter.section("attacks")
        terminalreporter.write_line(
            "longest: the bystander's longest wait; calm: before the attack; queued: how much of the longest wait the "
            "server's loop or the bystander stood in line for a processor; turn: CPU of the loop's longest turn"
        )
        terminalreporter.write_line(
            f"{'attack':<70} {'calm':>7} {'longest':>8} {'queued':>7} {'turn':>6} {'peak MiB':>8} {'answers':>7} "
            f"{'lasted':>7} {'CPU':>7}"
        )
        rows, left_out = self._rows, 0
        if not terminalreporter.config.getoption("long_attacks"):
            turns = sorted((row for row in rows if row.attack.startswith(TURN)), key=lambda row: -row.longest)
            left_out = len(turns[_SHOWN_TURNS:])
            rows = [row for row in rows if not row.attack.startswith(TURN)] + turns[:_SHOWN_TURNS]
        for row in rows:
            terminalreporter.write_line(row.told())
        if left_out:
            terminalreporter.write_line(f"{TURN}…: {left_out} shorter ones")

"""Every way in which a micro-batch can be disturbed, tried one after the other against a tiny model of the promise.

The promise: whatever dies, sleeps, times out or is not answered, each batch is in the log once and whole (PIPE-2,
PIPE-4). The world here is a transaction coordinator and a log in thirty lines. A run is a sequence of choices, one at
every point where something could go wrong; `explore` walks through all of them with a bounded number of disturbances,
and hypothesis goes deeper at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.core.commit import (
    Announce,
    Commit,
    Fence,
    Freeze,
    Look,
    Outcome,
    Peek,
    Progress,
    Protocol,
    Publish,
    Replaced,
    SinkNameInUse,
    Step,
    StepFailed,
    Who,
)
from fencepost.core.pid import Identity
from fencepost.types import Epoch, Pid

pytestmark = pytest.mark.model

BATCHES = 2


class Half(NamedTuple):
    """What one task writes: one of two halves of a frozen content."""

    batch: int
    content: int
    half: int


class Refused(Exception):
    """The coordinator or a leader says no."""


class World:
    """A coordinator, a log of committed records, and the progress topic."""

    def __init__(self) -> None:
        self.epoch = 0
        self.open: set[Half | Progress] | None = None
        self.log: list[Half] = []
        self.progress: Progress | None = None

    def fence(self) -> Identity:
        self.open = None
        self.epoch += 1
        return Identity(Pid(1), Epoch(self.epoch))

    def write(self, identity: Identity, what: Half | Progress) -> None:
        if identity.epoch != self.epoch:
            raise Refused
        self.open = (self.open or set()) | {what}

    def end(self, identity: Identity) -> None:
        if identity.epoch != self.epoch or self.open is None:
            raise Refused
        self.log += sorted(item for item in self.open if isinstance(item, Half))
        (self.progress,) = (item for item in self.open if isinstance(item, Progress))
        self.open = None
        self.check()

    def write_alone(self, identity: Identity, progress: Progress) -> None:
        self.write(identity, progress)
        self.end(identity)

    def time_out(self) -> None:
        if self.open is not None:
            self.fence()

    def check(self) -> None:
        for batch in range(BATCHES):
            written = [half for half in self.log if half.batch == batch]
            assert len(written) in (0, 2), f"batch {batch} is there {len(written) / 2} times: {self.log}"
            assert len({half.content for half in written}) <= 1, f"batch {batch} is made of two contents: {self.log}"


@dataclass
class Checkpoint:
    """Spark's commit log: outlives drivers."""

    done: int = 0


Choose = Callable[[list[str]], str]


@dataclass
class Driver:
    """Carries out the protocol's steps, as `spark/sink.py` does, with a point of choice before every effect."""

    number: int
    world: World
    checkpoint: Checkpoint
    contents: Iterator[int]
    frozen: int | None = None
    ended: str = ""
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> Iterator[str]:
        """Yields before every effect, the effect's name; is sent what becomes of it: ok, lost request, lost answer."""
        protocol = Protocol("k", Who(f"token-{self.number}", "host", self.number), attempts=2)
        while self.checkpoint.done < BATCHES:
            batch = self.checkpoint.done
            self.frozen = None
            steps = protocol.micro_batch("q", batch, now_ms=self.number)
            try:
                step = next(steps)
                while True:
                    try:
                        answer = yield from self._perform(step, batch)
                    except StepFailed as failure:
                        step = steps.throw(failure)
                    else:
                        step = steps.send(answer)
            except StopIteration as finished:
                self.outcomes.append(finished.value)
            except Replaced:
                self.ended = "replaced"
                return
            except SinkNameInUse:  # paused before its first fence, while another one went further
                self.ended = "overtaken"
                return
            except Refused:
                self.ended = "gave up"
                return
            yield "spark commits"
            self.checkpoint.done = max(self.checkpoint.done, batch + 1)
        self.ended = "finished"

    def _perform(self, step: Step, batch: int) -> Any:
        world = self.world
        match step:
            case Fence():
                yield "fence"
                return world.fence()
            case Peek():
                yield "peek"
                return Identity(Pid(1), Epoch(world.epoch))
            case Look():
                yield "look"
                return world.progress
            case Freeze(fresh=fresh):
                if fresh or self.frozen is None:
                    self.frozen = next(self.contents)  # recomputed data may come out otherwise
                return self.frozen
            case Publish(identity=identity, manifest=content):
                for half in (0, 1):
                    written = Half(batch, content, half)
                    yield from self._with_fate("task", partial(world.write, identity, written))
            case Announce(identity=identity, progress=progress):
                yield from self._with_fate("announce", partial(world.write_alone, identity, progress))
            case Commit(identity=identity, progress=progress):
                yield from self._with_fate("record", lambda: world.write(identity, progress))
                yield from self._with_fate("end", lambda: world.end(identity))
            case _:
                yield "pause"
        return None

    def _with_fate(self, name: str, effect: Callable[[], object]) -> Any:
        fate = yield name
        if fate == "lost request":
            raise StepFailed(Refused(name))
        try:
            effect()
        except Refused as error:
            raise StepFailed(error) from error
        if fate == "lost answer":
            raise StepFailed(Refused(name))


FALLIBLE = {"task", "announce", "record", "end"}


def play(choose: Choose, *, disturbances: int, drivers: int = 3) -> None:
    """One run: driver after driver, disturbed as chosen, and at the end an undisturbed one that must finish."""
    world, checkpoint = World(), Checkpoint()
    contents = iter(range(1_000))
    alive: list[tuple[Driver, Any, str]] = []  # (driver, its generator, the effect it is about to have)
    started = 0

    def start() -> None:
        nonlocal started
        driver = Driver(started, world, checkpoint, contents)
        started += 1
        running: Any = driver.run()
        effect = next(running, None)
        if effect is not None:
            alive.append((driver, running, effect))

    def go_on(at: int, fate: str) -> None:
        driver, running, _ = alive.pop(at)
        try:
            effect = running.send(fate)
        except StopIteration:
            return
        alive.insert(at, (driver, running, effect))

    start()
    at = 0
    left = disturbances
    while True:
        if not alive:
            if checkpoint.done == BATCHES and left == 0:
                break
            if started >= drivers or checkpoint.done == BATCHES:
                break
            start()
            at = 0
            continue
        at = min(at, len(alive) - 1)
        effect = alive[at][2]
        options = ["ok"]
        if left:
            options.append("crash")
            if effect in FALLIBLE:
                options += ["lost request", "lost answer"]
            if world.open is not None:
                options.append("time out")
            if started < drivers:
                options.append("successor")
            options += [f"switch {other}" for other in range(len(alive)) if other != at]
        choice = choose(options)
        if choice == "ok":
            go_on(at, "ok")
            continue
        left -= 1
        if choice == "crash":
            alive.pop(at)[1].close()
        elif choice in ("lost request", "lost answer"):
            go_on(at, choice)
        elif choice == "time out":
            world.time_out()
        elif choice == "successor":  # the one that runs now is paused, not dead
            start()
            at = len(alive) - 1
        else:
            at = int(choice.removeprefix("switch "))
    if checkpoint.done < BATCHES:
        last = Driver(99, world, checkpoint, contents)
        for _ in last.run():
            pass
        assert last.ended == "finished", last.ended
    world.check()
    assert len(world.log) == 2 * BATCHES, world.log


def explore(run: Callable[[Choose], None]) -> int:
    """Runs with every possible sequence of choices; says how many there were."""
    prefix: list[int] = []
    runs = 0
    while True:
        taken: list[tuple[int, int]] = []  # (choice, number of options)

        try:
            run(partial(_chosen, prefix, taken))
        except BaseException as error:
            error.add_note(f"choices: {[index for index, _ in taken]}")
            raise
        runs += 1
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return runs
        prefix = [index for index, _ in taken[:-1]] + [taken[-1][0] + 1]


def _chosen(prefix: list[int], taken: list[tuple[int, int]], options: list[str]) -> str:
    index = prefix[len(taken)] if len(taken) < len(prefix) else 0
    taken.append((index, len(options)))
    return options[index]


@pytest.mark.parametrize("disturbances", [0, 1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_every_sequence_of_disturbances_leaves_each_batch_in_the_log_once(disturbances: int) -> None:
    """PIPE-2, PIPE-4."""
    runs = explore(lambda choose: play(choose, disturbances=disturbances))
    assert runs >= 20**disturbances  # the exploration really branches


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_many_disturbances_at_random_leave_each_batch_in_the_log_once(data: st.DataObject) -> None:
    """PIPE-2, PIPE-4: up to eight disturbances, up to five drivers."""

    def choose(options: list[str]) -> str:
        # "ok" more often than not: a run must get somewhere.
        return options[0] if data.draw(st.integers(0, 3)) else data.draw(st.sampled_from(options))

    play(choose, disturbances=8, drivers=5)


def test_the_model_notices_a_protocol_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the check: without the look, a lost answer to the commit doubles the batch."""
    monkeypatch.setattr(World, "progress", property(lambda _: None, lambda _self, _value: None), raising=False)
    monkeypatch.setattr(Protocol, "_refuse", lambda *_: None)
    monkeypatch.setattr(Protocol, "_heed", lambda self, _last: setattr(self, "_announced", True))
    with pytest.raises(AssertionError, match="batch"):
        explore(lambda choose: play(choose, disturbances=1))

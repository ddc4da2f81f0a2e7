"""Every way in which a micro-batch can be disturbed, tried one after the other against a tiny model of the promise.

The promise: whatever dies, sleeps, times out or is not answered, each batch is in the log once and whole (PIPE-2,
PIPE-4); and whatever Spark takes for written is in the log, also where a checkpoint is restored from a backup, or two
sinks share a name. The world here is a transaction coordinator and a log in thirty lines. A run is a sequence of
choices, one at every point where something could go wrong; `explore` walks through all of them with a bounded number
of disturbances, and hypothesis goes deeper at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.core.micro_batch.protocol import (
    BatchOutcome,
    CalledTwice,
    FrozenContent,
    Origin,
    Progress,
    Replaced,
    SinkInstance,
    SinkNameInUse,
    SinkProtocol,
    StepFailed,
)
from fencepost.core.producers.pid import Identity
from fencepost.types import Epoch, Pid
from tests.support.examples import examples
from tests.support.sink_steps import Announce, Commit, Compare, Fence, Freeze, Look, Peek, Publish, SinkStep, steps_of

pytestmark = pytest.mark.model

BATCHES = 2


class Half(NamedTuple):
    """What one task writes: one of two halves of a frozen content."""

    batch: int
    content: int
    half: int


def digest_of(content: int | None) -> str:
    return f"rows-{content}"


class Refused(Exception):
    """The coordinator or a leader says no."""


class World:
    """A coordinator, a log of committed records, and the progress topic."""

    def __init__(self, *, repeats: bool = False) -> None:
        """`repeats`: a person may decide that a batch is written again."""
        self.repeats = repeats
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
            contents = {half.content for half in written}
            assert len(written) == 2 * len(contents), f"batch {batch} is there in part, or repeated: {self.log}"
            assert self.repeats or len(contents) <= 1, f"batch {batch} is there {len(contents)} times: {self.log}"


@dataclass
class Checkpoint:
    """Spark's offset log and commit log: they outlive drivers."""

    done: int = 0
    plans: dict[int, int] = field(default_factory=dict)
    """Batch → the offsets that it was planned with."""
    planned: int = 0
    contents: dict[int, int] = field(default_factory=dict)
    """Content → the plan that it is of."""

    def plan(self, batch: int) -> int:
        """The batch's offsets: planned once, and repeated after a restart."""
        if batch not in self.plans:
            self.plans[batch] = self.planned
            self.planned += 1
        return self.plans[batch]

    def restore(self) -> None:
        """From a backup of before the last batch. Its offsets are planned anew, and new data has come."""
        self.done = max(0, self.done - 1)
        self.plans = {batch: plan for batch, plan in self.plans.items() if batch < self.done}

    def commit(self, batch: int, log: list[Half], sinks: int, state: int | None) -> None:
        """`state`: the rows that Spark's state has seen, if the query keeps state."""
        written = {half.content for half in log if self.contents[half.content] == self.plans[batch]}
        assert len(written) >= sinks, f"batch {batch} is lost: Spark takes it for written, and the log has {log}"
        assert state is None or state in written, f"batch {batch}: the state has seen {state}, and the log has {log}"
        self.done = max(self.done, batch + 1)


Choose = Callable[[list[str]], str]


@dataclass
class Driver:
    """Carries out the protocol's steps, as `spark/sink.py` does, with a point of choice before every effect."""

    number: int
    world: World
    checkpoint: Checkpoint
    contents: Iterator[int]
    adopt: bool = False
    sinks: int = 1
    """How many of the same name are called in every batch, each with rows of its own."""
    processes: bool = False
    """Each batch is committed by a process of its own, as `format("fencepost")` does it."""
    stateful: bool = False
    state: int | None = None
    """The rows that Spark's state has seen."""
    frozen: int | None = None
    ended: str = ""
    outcomes: list[BatchOutcome] = field(default_factory=list)

    def run(self) -> Iterator[str]:
        """Yields before every effect, the effect's name; is sent what becomes of it: ok, lost request, lost answer."""
        protocols = [self._protocol(sink) for sink in range(self.sinks)]
        while self.checkpoint.done < BATCHES:
            batch = self.checkpoint.done
            if self.processes:
                protocols = [self._protocol(0)]
            origin = Origin(f"run-{self.number}", f"offsets-{self.checkpoint.plan(batch)}", "b")
            try:
                for protocol in protocols:
                    self.frozen = self.state = None
                    yield from self._micro_batch(protocol, batch, origin)
            except Replaced:
                self.ended = "replaced"
                return
            except SinkNameInUse:  # paused before its first fence, while another one went further; or restored
                self.ended = "overtaken"
                return
            except CalledTwice:
                self.ended = "called twice"
                return
            except Refused:
                self.ended = "gave up"
                return
            yield "spark commits"
            self.checkpoint.commit(batch, self.world.log, self.sinks, self.state)
        self.ended = "finished"

    def _protocol(self, sink: int) -> SinkProtocol:
        who = SinkInstance(f"token-{self.number}-{sink}", "host", self.number)
        return SinkProtocol("k", who, attempts=2, adopt=self.adopt, process_per_batch=self.processes)

    def _micro_batch(self, protocol: SinkProtocol, batch: int, origin: Origin) -> Iterator[str]:
        steps = steps_of(protocol, "q", batch, now_ms=self.number, origin=origin)
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
            if self.stateful and self.state is None:  # a batch that is skipped is still computed
                yield from self._recompute(batch)

    def _recompute(self, batch: int) -> Any:
        """Compute a batch that is in the log, with the same rows or with others."""
        if (yield "recompute") == "other rows":
            self._compute(batch)
        else:
            self.state = next(half.content for half in reversed(self.world.log) if half.batch == batch)

    def _compute(self, batch: int) -> int:
        content = next(self.contents)  # recomputed data may come out otherwise
        self.checkpoint.contents[content] = self.checkpoint.plan(batch)
        if self.stateful:
            self.state = content
        return content

    def _perform(self, step: SinkStep, batch: int) -> Any:
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
                    self.frozen = self._compute(batch)
                return FrozenContent(digest=digest_of(self.frozen) if self.stateful else "")
            case Compare(last=last):
                if self.state is None:
                    yield from self._recompute(batch)
                return "" if last.digest == digest_of(self.state) else "other rows"
            case Publish(identity=identity):
                assert self.frozen is not None
                for half in (0, 1):
                    written = Half(batch, self.frozen, half)
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


def play(
    choose: Choose,
    *,
    disturbances: int,
    drivers: int = 3,
    restored: bool = False,
    sinks: int = 1,
    processes: bool = False,
    moves: bool = False,
    stateful: bool = False,
) -> None:
    """One run: driver after driver, disturbed as chosen, and at the end an undisturbed one that must finish. With
    `restored` the checkpoint may be restored from a backup on the way, and the last driver adopts what it finds. With
    `moves` the drivers are of one kind and of the other in turn, beginning with `processes`."""
    world, checkpoint = World(repeats=restored), Checkpoint()
    contents = iter(range(1_000))
    alive: list[tuple[Driver, Any, str]] = []  # (driver, its generator, the effect it is about to have)
    started = 0

    def start() -> None:
        nonlocal started
        kind = processes ^ (moves and started % 2 == 1)
        driver = Driver(started, world, checkpoint, contents, sinks=sinks, processes=kind, stateful=stateful)
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
            if effect == "recompute":
                options.append("other rows")
            if world.open is not None:
                options.append("time out")
            if started < drivers:
                options.append("successor")
            if restored:
                options.append("restore")
            options += [f"switch {other}" for other in range(len(alive)) if other != at]
        choice = choose(options)
        if choice == "ok":
            go_on(at, "ok")
            continue
        left -= 1
        if choice == "crash":
            alive.pop(at)[1].close()
        elif choice in ("lost request", "lost answer", "other rows"):
            go_on(at, choice)
        elif choice == "time out":
            world.time_out()
        elif choice == "restore":
            while alive:
                alive.pop()[1].close()
            checkpoint.restore()
        elif choice == "successor":  # the one that runs now is paused, not dead
            start()
            at = len(alive) - 1
        else:
            at = int(choice.removeprefix("switch "))
    if checkpoint.done < BATCHES:
        last = Driver(
            99, world, checkpoint, contents, adopt=restored, sinks=sinks, processes=processes, stateful=stateful
        )
        for _ in last.run():
            pass
        assert last.ended == ("finished" if sinks == 1 else "called twice"), last.ended
    world.check()
    if sinks > 1:
        assert checkpoint.done == 0
    elif not restored:
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


@pytest.mark.parametrize("disturbances", [0, 1, 2])
def test_batches_committed_by_processes_of_their_own_are_in_the_log_once(disturbances: int) -> None:
    """PIPE-2, PIPE-4: each of them knows no more than the run that it belongs to."""
    explore(lambda choose: play(choose, disturbances=disturbances, processes=True))


@pytest.mark.every_run("False-False", "True-True")
@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("restored", [False, True])
def test_a_query_that_moves_between_the_two_sinks_has_each_batch_once(processes: bool, restored: bool) -> None:
    """PIPE-2, PIPE-4: also with a checkpoint that is restored from a backup on the way."""
    explore(lambda choose: play(choose, disturbances=2, processes=processes, moves=True, restored=restored))


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_many_disturbances_at_random_leave_each_batch_in_the_log_once(data: st.DataObject) -> None:
    """PIPE-2, PIPE-4: up to eight disturbances, up to five drivers."""

    def choose(options: list[str]) -> str:
        # "ok" more often than not: a run must get somewhere.
        return options[0] if data.draw(st.integers(0, 3)) else data.draw(st.sampled_from(options))

    play(choose, disturbances=8, drivers=5, processes=data.draw(st.booleans()))


@pytest.mark.parametrize("disturbances", [1, 2, pytest.param(3, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_checkpoint_restored_from_a_backup_loses_no_batch_without_an_error(disturbances: int) -> None:
    """PIPE-4: the batch that is planned anew has the number of one that is in the log, and other rows."""
    explore(lambda choose: play(choose, disturbances=disturbances, restored=True))


@pytest.mark.parametrize("disturbances", [0, 1, 2])
def test_two_sinks_of_one_name_never_let_spark_commit_a_batch(disturbances: int) -> None:
    """PIPE-2: the second one's rows are not in the log, in whatever run and after whatever crash."""
    explore(lambda choose: play(choose, disturbances=disturbances, sinks=2))


@pytest.mark.every_run("False-False", "True-True")
@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("restored", [False, True])
def test_the_state_of_a_query_has_seen_the_rows_that_are_in_the_log(processes: bool, restored: bool) -> None:
    """PIPE-2: a batch that is in the log is recomputed for the state, and perhaps with other rows."""
    explore(lambda choose: play(choose, disturbances=2, processes=processes, restored=restored, stateful=True))


def test_the_model_notices_a_state_of_rows_that_are_not_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the check: a protocol that skips a batch without comparing its rows."""
    monkeypatch.setattr(SinkProtocol, "_difference", lambda *_: "")
    with pytest.raises(AssertionError, match="the state has seen"):
        explore(lambda choose: play(choose, disturbances=2, stateful=True))


def test_the_model_notices_a_protocol_that_goes_by_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the check: without the origin, a restored checkpoint and a second sink lose a batch."""
    monkeypatch.setattr(SinkProtocol, "_refuse_another", lambda *_: None)
    for how in ({"restored": True, "disturbances": 1}, {"sinks": 2, "disturbances": 0}):
        with pytest.raises(AssertionError, match="is lost"):
            explore(partial(_play, how))


def _play(how: dict[str, Any], choose: Choose) -> None:
    play(choose, **how)


def test_the_model_notices_a_protocol_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the check: without the look, a lost answer to the commit doubles the batch."""
    monkeypatch.setattr(World, "progress", property(lambda _: None, lambda _self, _value: None), raising=False)
    monkeypatch.setattr(SinkProtocol, "_refuse", lambda *_: None)
    monkeypatch.setattr(SinkProtocol, "_heed", lambda self, _last: setattr(self, "_announced", True))
    with pytest.raises(AssertionError, match="batch"):
        explore(lambda choose: play(choose, disturbances=1))

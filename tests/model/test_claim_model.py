"""`own` on Apache Kafka: every order in which claimants' steps can fall, tried one after the other (OWN-3 to OWN-9).

The world is what Kafka offers: transactional ids with epochs, and one topic, written in transactions of the claim
id. `explore` visits every state that two or three claimants can bring about, each paused between any two of its steps
for as long as one likes, with commits whose answer is lost. A claimant that is never resumed has been killed, so every
state visited is also one in which all of them are dead; from each, one more claim must succeed.

The promise, in every state:
    of those that were told that they own a resource, at most one is not fenced, and it has the newest token;
    nobody is fenced who owns something by the records;
    tokens rise; a claim's records come whole; a refused claim has written nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.core.claim import Held, Refused
from fencepost.core.claim_steps import (
    Ask,
    Commit,
    Enlist,
    FenceClaims,
    FenceWriter,
    InDoubt,
    Look,
    Overtaken,
    Owned,
    Step,
    Steps,
    Write,
    claim,
    release,
)
from fencepost.core.owner_records import Claimant, OwnerRecord
from fencepost.core.ownership import Wanted
from fencepost.core.pid import Identity
from fencepost.errors import Fenced
from fencepost.types import Epoch, Generation, Pid

pytestmark = pytest.mark.model

INITIALISED, FENCED = Epoch(0), Epoch(1)
"""All that matters of a write id's epoch: whether it is still the one that its owner was given."""


class World(NamedTuple):
    """Immutable and without counters that only grow, so that states can be compared and there is an end of them."""

    epochs: frozenset[tuple[str, Epoch]] = frozenset()
    claims: str = ""
    """Who fenced the claim id last."""
    open: tuple[tuple[str, OwnerRecord], ...] | None = None
    """What that one has written and not committed; None: nothing is open."""
    table: tuple[tuple[str, OwnerRecord], ...] = ()
    doubts: int = 1
    """How many more commits may lose their answer."""

    def epoch(self, write_id: str) -> Epoch | None:
        return dict(self.epochs).get(write_id)

    def fenced(self, write_id: str) -> World:
        epoch = INITIALISED if self.epoch(write_id) is None else FENCED
        return self._replace(epochs=frozenset({**dict(self.epochs), write_id: epoch}.items()))

    def is_alive(self, write_id: str) -> bool:
        return self.epoch(write_id) == INITIALISED

    def committed(self) -> World:
        assert self.open is not None
        before, new = dict(self.table), dict(self.open)
        highest = max((record.token for record in before.values()), default=0)
        for name, record in new.items():
            if record.owner is None:
                assert record.token == before[name].token, "giving back keeps the token"
            else:
                assert record.token > highest, f"token {record.token} of {name} after {highest}"
        return self._replace(table=tuple(sorted({**before, **new}.items())), open=None)


class Told(NamedTuple):
    """How a claim ended."""

    rows: tuple[Held, ...] = ()
    fenced: bool = False

    def token(self, name: str) -> int | None:
        return next((row.token for row in self.rows if row.name == name), None)


class State(NamedTuple):
    """Where a claimant is. A generator is where its answers have brought it, and an overtaken one is back at step 2."""

    initialised: bool = False
    may_be_fenced: bool = False
    answers: tuple[Any, ...] = ()
    """Since it last came to step 2."""

    def told(self, step: Step, answer: Any) -> State:
        match step, answer:
            case Commit(), type():
                return State(True, True)
            case _, type():
                return State(True, self.may_be_fenced)
            case FenceWriter(), _ if not self.initialised:
                return State(True)
        return self._replace(answers=(*self.answers, Read(answer) if isinstance(answer, dict) else answer))


class Read(dict[str, OwnerRecord]):
    """A table that was read, so that states can be compared."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


Make = Callable[[Identity | None], Steps]
"""A claim by one that has (and may have lost) this identity already, or by a fresh one."""


def identity_of(epoch: Epoch | None) -> Identity:
    assert epoch is not None
    return Identity(Pid(1), epoch)


MINE = identity_of(INITIALISED)


def resumed(make: Make, state: State) -> Step | Told:
    """What the claimant does next, or how it ended."""
    try:
        if state.may_be_fenced:
            steps = make(MINE)
            step = next(steps)
        else:
            steps = make(None)
            step = next(steps)
            if state.initialised:
                step = steps.send(MINE)
        for answer in state.answers:
            step = steps.send(answer)
    except StopIteration as end:
        owned: Owned = end.value
        return Told(tuple(owned.rows))
    except Refused:
        return Told()
    except Fenced:
        return Told(fenced=True)
    return step


def outcomes(world: World, me: str, step: Step) -> Iterator[tuple[World, Any]]:
    """All that a step can come to: the world after it, and what its claimant is told."""
    match step:
        case FenceWriter(write_id):
            after = world.fenced(write_id)
            yield after, identity_of(after.epoch(write_id))
        case FenceClaims():
            yield world._replace(claims=me, open=None), identity_of(INITIALISED)
        case Look():
            yield world, dict(world.table)
        case Ask(write_id):
            yield world, identity_of(world.epoch(write_id))
        case Enlist() | Write() | Commit() if world.claims != me:
            yield world, Overtaken
        case Enlist():
            yield world._replace(open=()), None
        case Write(_, records):
            assert world.open == ()
            yield world._replace(open=tuple(sorted(records.items()))), None
        case Commit():
            yield world.committed(), None
            if world.doubts:
                doubtful = world._replace(doubts=world.doubts - 1)
                yield doubtful.committed(), InDoubt
                yield doubtful, InDoubt


def run_alone(world: World, me: str, make: Make, state: State = State()) -> tuple[World, Told]:  # noqa: B008
    while not isinstance(step := resumed(make, state), Told):
        world, answer = next(outcomes(world, me, step))
        state = state.told(step, answer)
    return world, step


class Node(NamedTuple):
    world: World
    states: tuple[State, ...]


@dataclass
class Scenario:
    """Claimants, by their write id, and what was there before them."""

    claimants: dict[str, Make]
    world: World = World()  # noqa: RUF009 - it is immutable
    owners: dict[str, Told] = field(default_factory=dict)
    """Told before that they own something."""

    def first(self) -> Node:
        known = [State(True, True) if name in self.owners else State() for name in self.claimants]
        return Node(self.world, tuple(known))

    def told(self, node: Node) -> list[tuple[str, Told]]:
        """All that were ever told something, by their write id."""
        ended = [
            (me, end)
            for (me, make), state in zip(self.claimants.items(), node.states, strict=True)
            if isinstance(end := resumed(make, state), Told)
        ]
        return [*self.owners.items(), *ended]

    def check(self, node: Node) -> None:
        told = self.told(node)
        for name in {row.name for _, each in told for row in each.rows}:
            owning = {me: token for me, each in told if (token := each.token(name)) is not None}
            alive = [me for me in owning if node.world.is_alive(me)]
            assert len(alive) <= 1, f"{name}: {alive} in {node.world}"
            assert all(owning[me] == max(owning.values()) for me in alive), f"{name}: an older one writes: {owning}"
        for me, each in told:
            if not each.rows and not each.fenced and me not in self.owners:
                assert all(record.owner != me for _, record in node.world.table), f"{me} was refused, and owns"

    def check_step(self, world: World, me: str, step: Step) -> None:
        if isinstance(step, FenceWriter) and step.write_id != me:
            owned = [name for name, record in world.table if record.owner == step.write_id]
            assert not owned, f"{step.write_id} is fenced and owns {owned}"

    def check_next_claim_succeeds(self, world: World) -> None:
        """Everybody is dead now. One more comes, believing nothing."""
        names = sorted(dict(world.table)) or ["a"]
        after, told = run_alone(world, "late", fresh("late", want(0, *names)))
        assert [row.name for row in told.rows] == names
        assert after.is_alive("late")
        still = [me for me, each in self.owners.items() if each.rows and after.is_alive(me)]
        assert not still, f"{still} can still write after {told}"


def explore(scenario: Scenario) -> int:
    """Every reachable state, once; says how many."""
    first = scenario.first()
    seen, worlds, todo = {first}, set(), [first]
    while todo:
        node = todo.pop()
        scenario.check(node)
        if node.world not in worlds:
            worlds.add(node.world)
            scenario.check_next_claim_succeeds(node.world)
        for index, (me, make) in enumerate(scenario.claimants.items()):
            state = node.states[index]
            step = resumed(make, state)
            if isinstance(step, Told):
                continue
            scenario.check_step(node.world, me, step)
            for world, answer in outcomes(node.world, me, step):
                states = (*node.states[:index], state.told(step, answer), *node.states[index + 1 :])
                reached = Node(world, states)
                if reached not in seen:
                    seen.add(reached)
                    todo.append(reached)
    return len(seen)


def fresh(write_id: str, wanted: list[Wanted], call: str = "claim") -> Make:
    return lambda identity: claim(Claimant("g", write_id, f"{call} of {write_id}"), wanted, identity)


def releasing(write_id: str, names: list[str]) -> Make:
    return lambda _: release(Claimant("g", write_id, f"release by {write_id}"), names, MINE)


def want(generation: int, *names: str, after: int | None = None) -> list[Wanted]:
    return [Wanted(name, Generation(generation), after) for name in names]


def owned_by_x(*names: str) -> tuple[World, Told]:
    return run_alone(World(), "x", fresh("x", want(1, *names), "first claim"))


def test_two_that_both_believe_in_generation_1_are_never_both_owners() -> None:
    states = explore(Scenario({"y": fresh("y", want(1, "a")), "z": fresh("z", want(1, "a"))}))
    print(f"{states} states")
    assert states > 100


@pytest.mark.parametrize("generation", [0, 1, 7])
def test_two_take_over_from_an_owner_that_has_more_than_they_want(generation: int) -> None:
    world, x = owned_by_x("a", "b")
    two = {"y": fresh("y", want(generation, "a")), "z": fresh("z", want(generation, "a", "b"))}
    print(f"{explore(Scenario(two, world, {'x': x}))} states")


def test_three_claim_at_the_same_time() -> None:
    world, x = owned_by_x("a")
    three = {name: fresh(name, want(generation, "a")) for name, generation in (("y", 1), ("z", 0), ("w", 9))}
    print(f"{explore(Scenario(three, world._replace(doubts=0), {'x': x}))} states")


def test_an_owner_claims_more_while_another_takes_over_what_it_has() -> None:
    world, x = owned_by_x("a")
    two = {"x": fresh("x", want(1, "b", "a")), "y": fresh("y", want(1, "a", "c"))}
    print(f"{explore(Scenario(two, world, {'x': x}))} states")


def test_an_owner_gives_back_while_others_take_over() -> None:
    """What it has given back it no longer writes to, by its own word; of the rest it is fenced."""
    world, x = owned_by_x("a", "b")
    three = {"x": releasing("x", ["a"]), "y": fresh("y", want(1, "a")), "z": fresh("z", want(1, "b"))}
    keeps_b = Told(tuple(row for row in x.rows if row.name == "b"))
    print(f"{explore(GivingBack(three, world._replace(doubts=0), {'x': keeps_b}))} states")


class GivingBack(Scenario):
    def told(self, node: Node) -> list[tuple[str, Told]]:
        return [(me, each) for me, each in super().told(node) if me != "x" or each == self.owners["x"]]


def test_after_a_token_only_one_gets_in() -> None:
    """`after=` is a compare-and-set, also where the answer to a commit is lost."""
    world, x = owned_by_x("a")
    two = {name: fresh(name, want(5, "a", after=x.rows[0].token)) for name in ("y", "z")}
    explore(OnlyOne(two, world, {"x": x}))


class OnlyOne(Scenario):
    def check(self, node: Node) -> None:
        super().check(node)
        assert sum(bool(told.rows) for me, told in self.told(node) if me not in self.owners) <= 1


def test_a_refused_claim_has_changed_nothing() -> None:
    """OWN-4, OWN-7: it fenced the claim id and its own write id, and nothing else."""
    world, _ = owned_by_x("a")
    world, _ = run_alone(world, "y", fresh("y", want(6, "a", "b")))
    after, told = run_alone(world, "z", fresh("z", want(5, "b", "a")))
    assert told == Told()
    assert after.table == world.table
    assert dict(after.epochs) == {**dict(world.epochs), "z": INITIALISED}
    assert after.is_alive("y")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_number_of_claimants_in_any_order(data: st.DataObject) -> None:
    """Wider than `explore` can go: up to six claimants of overlapping resources, at random."""
    names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
    count = data.draw(st.integers(2, 6), label="claimants")
    claimants = {f"c{number}": (data.draw(st.integers(0, 4)), data.draw(names)) for number in range(count)}
    scenario = Scenario(
        {me: fresh(me, want(generation, *wanted)) for me, (generation, wanted) in claimants.items()}, World(doubts=2)
    )
    node = scenario.first()
    for _ in range(data.draw(st.integers(5, 90), label="steps")):
        index = data.draw(st.integers(0, count - 1))
        me, make = list(scenario.claimants.items())[index]
        step = resumed(make, node.states[index])
        if isinstance(step, Told):
            continue
        scenario.check_step(node.world, me, step)
        world, answer = data.draw(st.sampled_from(list(outcomes(node.world, me, step))))
        states = list(node.states)
        states[index] = states[index].told(step, answer)
        node = Node(world, tuple(states))
        scenario.check(node)
    scenario.check_next_claim_succeeds(node.world)

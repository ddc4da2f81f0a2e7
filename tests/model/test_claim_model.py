"""`own` on Apache Kafka: every order in which claimants' steps can fall, tried one after the other (OWN-3 to OWN-9).

The world is what Kafka offers: transactional ids with epochs, and one topic, written in transactions of the claim
id. `explore` visits every state that two or three claimants can bring about, each paused between any two of its steps
for as long as one likes, with commits whose answer is lost. A claimant that is never resumed has been killed, so every
state visited is also one in which all of them are dead; from each, one more claim must succeed.

The promise, in every state:
    of those that were told that they own a resource, at most one is not fenced under all of its write ids (it has two
    here, one of them a lane), and it has the newest token;
    nobody is fenced who owns something by the records;
    tokens rise; a claim's records come whole; a refused claim has written nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.core.own.claim_request import Refused
from fencepost.core.own.kafka_records import Claimant, OwnerRecord, Records, WaitingClaimRecord, is_next, write_ids
from fencepost.core.own.kafka_steps import (
    AddToTransaction,
    ClaimOutcome,
    ClaimStep,
    ClaimSteps,
    CommitRecords,
    DescribeWriter,
    FenceClaims,
    FenceWriters,
    InDoubt,
    Overtaken,
    ReadRecords,
    WriteRecords,
    claim,
    claim_in_line,
    leave_line,
    line_up,
    release,
)
from fencepost.core.own.ownership import ClaimedResource, OwnedResource
from fencepost.core.producers.pid import Identity
from fencepost.errors import Fenced
from fencepost.types import Epoch, Generation, Pid
from tests.support.examples import examples

pytestmark = pytest.mark.model

LANES = (1,)
INITIALISED, FENCED = Epoch(0), Epoch(1)
"""All that matters of a write id's epoch: whether it is still the one that its owner was given."""


class World(NamedTuple):
    """Immutable and without counters that only grow, so that states can be compared and there is an end of them."""

    epochs: frozenset[tuple[str, Epoch]] = frozenset()
    claims: str = ""
    """Who fenced the claim id last."""
    open: tuple[tuple[tuple[str, OwnerRecord], ...], tuple[tuple[str, WaitingClaimRecord | None], ...]] | None = None
    """What that one has written and not committed; None: nothing is open."""
    table: tuple[tuple[str, OwnerRecord], ...] = ()
    line: tuple[tuple[str, WaitingClaimRecord], ...] = ()
    doubts: int = 1
    """How many more commits may lose their answer."""

    def epoch(self, write_id: str) -> Epoch | None:
        return dict(self.epochs).get(write_id)

    def fenced(self, write_id: str) -> World:
        epoch = INITIALISED if self.epoch(write_id) is None else FENCED
        return self._replace(epochs=frozenset({**dict(self.epochs), write_id: epoch}.items()))

    def is_alive(self, owner: str) -> bool:
        """Whether one of its write ids would still be let in."""
        return any(self.epoch(write_id) == INITIALISED for write_id in write_ids(owner, LANES))

    def is_whole(self, owner: str) -> bool:
        return all(self.epoch(write_id) == INITIALISED for write_id in write_ids(owner, LANES))

    def committed(self) -> World:
        assert self.open is not None
        before, new = dict(self.table), dict(self.open[0])
        line = {**dict(self.line), **dict(self.open[1])}
        highest = max((record.token for record in before.values()), default=0)
        for name, record in new.items():
            if record.owner is None:
                assert record.token == before[name].token, "giving back keeps the token"
            else:
                assert record.token > highest, f"token {record.token} of {name} after {highest}"
        in_line = tuple((me, waiting) for me, waiting in sorted(line.items()) if waiting is not None)
        return self._replace(table=tuple(sorted({**before, **new}.items())), line=in_line, open=None)


class Told(NamedTuple):
    """How a claim ended."""

    rows: tuple[OwnedResource, ...] = ()
    fenced: bool = False
    waits: bool = False

    def token(self, name: str) -> int | None:
        return next((row.token for row in self.rows if row.name == name), None)


class State(NamedTuple):
    """Where a claimant is. A generator is where its answers have brought it, and an overtaken one is back at step 2."""

    initialised: bool = False
    may_be_fenced: bool = False
    answers: tuple[Any, ...] = ()
    """Since it last came to step 2."""
    fenced: frozenset[tuple[str, Identity]] = frozenset()
    """Of several write ids that are being fenced: those that are, in whatever order."""

    def told(self, step: ClaimStep, answer: Any) -> State:
        if isinstance(step, FenceWriters):
            fenced = self.fenced | {answer}
            if len(fenced) < len(step.write_ids):
                return self._replace(fenced=fenced)
            identities = tuple(dict(fenced)[write_id] for write_id in step.write_ids)
            return self._replace(fenced=frozenset())._told(step, identities)
        return self._told(step, answer)

    def _told(self, step: ClaimStep, answer: Any) -> State:
        match step, answer:
            case CommitRecords(), type():
                return State(True, True)
            case _, type():
                return State(True, self.may_be_fenced)
            case FenceWriters(), _ if not self.initialised:
                return State(True)
        return self._replace(answers=(*self.answers, answer))


class Read(dict[Any, Any]):
    """Records that were read, so that states can be compared."""

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash


Make = Callable[[tuple[Identity, ...]], ClaimSteps[Any]]
"""A claim by one that has (and may have lost) these identities already, or by a fresh one."""


def identity_of(epoch: Epoch | None) -> Identity:
    assert epoch is not None
    return Identity(Pid(1), epoch)


MINE = (identity_of(INITIALISED),) * (1 + len(LANES))


@cache
def resumed(make: Make, state: State) -> ClaimStep | Told:
    """What the claimant does next, or how it ended. A claimant has few states, however many all of them have."""
    try:
        if state.may_be_fenced:
            steps = make(MINE)
            step = next(steps)
        else:
            steps = make(())
            step = next(steps)
            if state.initialised:
                step = steps.send(MINE)
        for answer in state.answers:
            step = steps.send(answer)
    except StopIteration as end:
        owned: ClaimOutcome | None = end.value
        return Told(waits=True) if owned is None else Told(tuple(owned.rows))
    except Refused:
        return Told()
    except Fenced:
        return Told(fenced=True)
    return step


def outcomes(world: World, me: str, state: State, step: ClaimStep) -> Iterator[tuple[World, Any]]:
    """All that a step can come to: the world after it, and what its claimant is told."""
    match step:
        case FenceWriters(ids):
            for write_id in ids:
                if write_id not in dict(state.fenced):
                    after = world.fenced(write_id)
                    yield after, (write_id, identity_of(after.epoch(write_id)))
        case FenceClaims():
            yield world._replace(claims=me, open=None), identity_of(INITIALISED)
        case ReadRecords():
            yield world, Records(Read(world.table), Read(world.line))
        case DescribeWriter(write_id):
            yield world, identity_of(world.epoch(write_id))
        case AddToTransaction() | WriteRecords() | CommitRecords() if world.claims != me:
            yield world, Overtaken
        case AddToTransaction():
            yield world._replace(open=((), ())), None
        case WriteRecords(_, records, line):
            assert world.open == ((), ())
            yield world._replace(open=(tuple(sorted(records.items())), tuple(sorted(line.items())))), None
        case CommitRecords():
            yield world.committed(), None
            if world.doubts:
                doubtful = world._replace(doubts=world.doubts - 1)
                yield doubtful.committed(), InDoubt
                yield doubtful, InDoubt


def run_alone(world: World, me: str, make: Make, state: State = State()) -> tuple[World, Told]:  # noqa: B008
    while not isinstance(step := resumed(make, state), Told):
        world, answer = next(outcomes(world, me, state, step))
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

    def check_step(self, world: World, me: str, step: ClaimStep) -> None:
        if isinstance(step, FenceWriters):
            for owner in {write_id.partition(".")[0] for write_id in step.write_ids} - {me}:
                owned = [name for name, record in world.table if record.owner == owner]
                assert not owned, f"{owner} is fenced and owns {owned}"

    def check_next_claim_succeeds(self, world: World) -> None:
        """Everybody is dead now. One more comes, believing nothing."""
        names = sorted(dict(world.table)) or ["a"]
        after, told = run_alone(world, "late", fresh("late", want(0, *names)))
        assert [row.name for row in told.rows] == names
        assert after.is_whole("late")
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
            for world, answer in outcomes(node.world, me, state, step):
                states = (*node.states[:index], state.told(step, answer), *node.states[index + 1 :])
                reached = Node(world, states)
                if reached not in seen:
                    seen.add(reached)
                    todo.append(reached)
    return len(seen)


def fresh(write_id: str, wanted: list[ClaimedResource], call: str = "claim") -> Make:
    return lambda identities: claim(claimant(write_id, f"{call} of {write_id}"), wanted, identities)


def claimant(write_id: str, call: str, session: int = 0) -> Claimant:
    return Claimant("g", write_id, call, lanes=LANES, session_ms=session)


def releasing(write_id: str, names: list[str]) -> Make:
    return lambda _: release(claimant(write_id, f"release by {write_id}"), names, MINE)


def want(generation: int, *names: str, after: int | None = None) -> list[ClaimedResource]:
    return [ClaimedResource(name, Generation(generation), after) for name in names]


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


@pytest.mark.long  # 57,000 states; two at a time, and any number at random, are in every run
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
    assert dict(after.epochs) == {**dict(world.epochs), "z": INITIALISED, "z.1": INITIALISED}
    assert after.is_whole("y")


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
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
        world, answer = data.draw(st.sampled_from(list(outcomes(node.world, me, node.states[index], step))))
        states = list(node.states)
        states[index] = states[index].told(step, answer)
        node = Node(world, tuple(states))
        scenario.check(node)
    scenario.check_next_claim_succeeds(node.world)


# --- waiting claims ---


def waiting_for(me: str, *names: str, gone: tuple[str, ...] = ()) -> Make:
    return lambda identities: claim_in_line(claimant(me, f"wait of {me}", 1000), want(0, *names), gone, identities)


def in_line(world: World, *waiting: tuple[str, str]) -> World:
    """After these have lined up, each for its names."""
    for me, names in waiting:
        lined_up, told = run_alone(world, me, lambda _, me=me, names=names: line_up(claimant(me, "l"), list(names), ()),  # type: ignore[misc]
                                   State(initialised=True, may_be_fenced=True))  # fmt: skip
        assert told == Told()
        world = lined_up
    return world


class NeverSevering(Scenario):
    """Nobody that is not gone is fenced, and the line's order is kept."""

    def check_step(self, world: World, me: str, step: ClaimStep) -> None:
        super().check_step(world, me, step)
        if isinstance(step, FenceWriters):
            assert {write_id.partition(".")[0] for write_id in step.write_ids} <= {me, "dead"}


def test_claims_that_wait_never_sever_an_owner_that_is_there_whoever_is_first() -> None:
    """They claim at the same time although it is nobody's turn but the first one's: only that one is granted."""
    world = in_line(World(), ("y", "a"), ("z", "a"))
    two = {"y": waiting_for("y", "a"), "z": waiting_for("z", "a")}

    class InOrder(NeverSevering):
        def check(self, node: Node) -> None:
            super().check(node)
            told = dict(self.told(node))
            assert "z" not in told or not told["z"].rows, "granted before the one that is ahead"

    print(f"{explore(InOrder(two, world))} states")


def test_of_two_that_wait_for_a_dead_owner_the_first_in_line_gets_all_of_it() -> None:
    """And the dead one is fenced before it returns: it may only have been paused."""
    world, dead = run_alone(World(), "dead", fresh("dead", want(1, "a", "b")))
    world = in_line(world, ("y", "ab"), ("z", "b"))
    two = {me: waiting_for(me, *names, gone=("dead",)) for me, names in (("y", "ab"), ("z", "b"))}

    class InOrder(NeverSevering):
        def check(self, node: Node) -> None:
            super().check(node)
            for me, told in self.told(node):
                assert me != "z" or not told.rows
                assert me != "y" or not told.waits

    print(f"{explore(InOrder(two, world._replace(doubts=0), {'dead': dead}))} states")


def test_a_claim_that_waits_beside_one_that_takes_over_at_once() -> None:
    """The latter does not ask who is ahead; whoever comes second sees the other one."""
    world, dead = run_alone(World(), "dead", fresh("dead", want(1, "a")))
    world = in_line(world, ("y", "a"))
    two = {"y": waiting_for("y", "a", gone=("dead",)), "z": fresh("z", want(1, "a"))}
    print(f"{explore(Scenario(two, world, {'dead': dead}))} states")


def test_whoever_gives_up_waiting_leaves_the_line_and_changes_nothing_else() -> None:
    world = in_line(World(), ("y", "a"), ("z", "a"))
    after, _ = run_alone(world, "y", lambda _: leave_line(claimant("y", "leave")), State(True, True))
    assert [me for me, _ in after.line] == ["z"]
    assert (after.table, after.epochs) == (world.table, world.epochs)
    assert run_alone(after, "z", waiting_for("z", "a"))[1].rows


class Line:
    """The rule said another way: a list of those in line, in the order in which they came, and a table of owners."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.waiting: list[tuple[str, frozenset[str]]] = []

    def grant(self, gone: set[str]) -> list[str]:
        """Whoever may go ahead now, in order."""
        self.owners = {name: owner for name, owner in self.owners.items() if owner not in gone}
        self.waiting = [each for each in self.waiting if each[0] not in gone]
        granted = []
        for me, names in list(self.waiting):
            if not names & self.owners.keys():
                self.owners |= dict.fromkeys(names, me)
                self.waiting.remove((me, names))
                granted.append(me)
        return granted


@given(st.data())
@settings(max_examples=examples(70), deadline=None)
def test_waiting_claims_are_granted_as_a_single_list_would_grant_them(data: st.DataObject) -> None:
    """In order of arrival, each when all that it wants is free, and not held up by one that still has to wait."""
    world, model, gone = World(), Line(), set[str]()
    claims: dict[str, frozenset[str]] = {}
    for number in range(data.draw(st.integers(1, 8))):
        me = f"c{number}"
        names = claims[me] = frozenset(data.draw(st.sets(st.sampled_from("abc"), min_size=1)))
        world = in_line(world, (me, "".join(sorted(names))))
        model.waiting.append((me, names))
        if data.draw(st.booleans()) and claims:
            gone.add(data.draw(st.sampled_from(sorted(claims))))
        expected = model.grant(gone)
        for each in data.draw(st.permutations(sorted(set(claims) - gone))):  # asked in whatever order
            records = Records(dict(world.table), dict(world.line))
            is_waiting = each in records.line
            assert not is_waiting or is_next(records, each, claims[each], gone) == (each in expected)
        for each in expected:
            make = waiting_for(each, *sorted(claims[each]), gone=tuple(gone))
            world, told = run_alone(world, each, make)
            assert {row.name for row in told.rows} == claims[each]
        held = {name: record.owner for name, record in world.table if record.owner not in (None, *gone)}
        assert held == {name: owner for name, owner in model.owners.items() if owner not in gone}

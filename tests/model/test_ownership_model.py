"""Random claims, waits, releases and ends against a table that one can see through at a glance (OWN-1 to OWN-8)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fencepost.core.own.ownership import MAX_GENERATION, ClaimedResource, Granted, Judgement, OwnershipTable
from fencepost.types import Generation
from tests.support.examples import examples

pytestmark = pytest.mark.model

OWNERS = st.sampled_from("abcd")
NAMES = st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True)
GENERATIONS = st.one_of(st.integers(0, 4), st.sampled_from([MAX_GENERATION - 1, MAX_GENERATION]))


class OwnershipMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table: OwnershipTable[str] = OwnershipTable()
        self.model: dict[str, tuple[str, int]] = {}  # resource → (owner, generation)
        self.line: list[tuple[str, list[str]]] = []
        self.last_token = 0

    def take(self, owner: str, judged: Judgement[str], expected: list[int]) -> None:
        assert isinstance(judged, Granted)
        assert [row.generation for row in judged.rows] == expected
        before = {self.model[row.name][0] for row in judged.rows if row.name in self.model}
        assert set(judged.severed) == before - {owner}
        for row in judged.fresh:
            assert row.token > self.last_token
            self.last_token = row.token
        for row in judged.rows:
            self.model[row.name] = (owner, row.generation)
        for lost in judged.severed:
            self.end(lost)
        self.serve()

    def serve(self) -> None:
        for waiting, judged in self.table.runnable():
            names = [claimed.name for claimed in waiting.resources]
            first = next(i for i, (owner, wanted) in enumerate(self.line) if self.is_free(owner, wanted))
            assert self.line.pop(first) == (waiting.claimant, names)
            assert isinstance(judged, Granted)
            for row in judged.rows:
                self.last_token = max(self.last_token, row.token)
                self.model[row.name] = (waiting.claimant, row.generation)
        assert not any(self.is_free(owner, wanted) for owner, wanted in self.line)

    def is_free(self, owner: str, names: list[str]) -> bool:
        return all(name not in self.model or self.model[name][0] == owner for name in names)

    @rule(owner=OWNERS, names=NAMES, asked=GENERATIONS)
    def claim(self, owner: str, names: list[str], asked: int) -> None:
        judged = self.table.claim(owner, "g", [ClaimedResource(name, Generation(asked)) for name in names])
        expected: list[int] = []
        for name in names:
            holder, generation = self.model.get(name, ("", 0))
            if holder == owner and asked != 0:
                expected.append(generation)
            elif not holder or asked == 0:
                expected.append(1)
            elif generation > asked or generation == MAX_GENERATION:
                assert not isinstance(judged, Granted)
                return
            else:
                expected.append(max(asked, generation + 1))
        self.take(owner, judged, expected)

    @rule(owner=OWNERS, names=NAMES)
    def wait(self, owner: str, names: list[str]) -> None:
        self.table.wait(owner, "g", [ClaimedResource(name) for name in names])
        self.line.append((owner, names))
        self.serve()

    @rule(owner=OWNERS, names=NAMES)
    def release(self, owner: str, names: list[str]) -> None:
        given = [name for name in names if self.model.get(name, ("", 0))[0] == owner]
        assert self.table.release(owner, "g", names) == given
        for name in given:
            del self.model[name]
        self.serve()

    @rule(owner=OWNERS)
    def end(self, owner: str) -> None:
        self.table.ended(owner)
        self.model = {name: held for name, held in self.model.items() if held[0] != owner}
        self.line = [waiting for waiting in self.line if waiting[0] != owner]
        self.serve()

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        assert {name: (holding.owner, holding.generation) for _, name, holding in self.table} == self.model
        assert [
            (waiting.claimant, [claimed.name for claimed in waiting.resources]) for waiting in self.table.waiting()
        ] == self.line


TestOwnership = OwnershipMachine.TestCase
TestOwnership.settings = settings(max_examples=examples(70), stateful_step_count=40, deadline=None)

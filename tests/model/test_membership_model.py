"""Random lives of groups: members join, die, leave, stop, lose their connection, work too slowly; partitions appear.

Both sides are the real rules. What must hold: a partition is never handed out by a member after a later holder did;
nobody but its holder commits it, and no commit goes back; a commit in `on_revoked` counts, and no other member has the
partition until that has ended; a member that is alive and heard loses nothing; with transactions each record is
processed exactly once, in order; and when all is well again, every partition is read. Each planted mistake is found.
The same holds while members of both protocols are in the group, and it changes its own with them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.group_world import FAULTS, RollingWorld, Violation, World, live

pytestmark = pytest.mark.model

LIVES = 20
MANY_LIVES = 2000
MOST_LIVES_TO_FIND = 60


def test_whatever_happens_a_partition_has_one_reader() -> None:
    play(range(LIVES))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_happens_in_many_lives_a_partition_has_one_reader() -> None:
    play(range(LIVES, MANY_LIVES))


def test_while_clients_change_their_protocol_a_partition_has_one_reader() -> None:
    worlds = play(range(LIVES), RollingWorld)
    assert sum(world.changes for world in worlds if isinstance(world, RollingWorld)) > LIVES


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_in_many_lives_with_both_protocols_a_partition_has_one_reader() -> None:
    play(range(LIVES, MANY_LIVES), RollingWorld)


def play(seeds: Iterable[int], kind: type[World] = World) -> list[World]:
    worlds = []
    for seed in seeds:
        try:
            world = live(seed, kind=kind)
        except Violation as violation:
            violation.add_note(f"seed {seed}")
            raise
        assert world.count > 100, f"seed {seed}: next to nothing happened"
        worlds.append(world)
    return worlds


@pytest.mark.parametrize("fault", FAULTS)
def test_the_model_finds_each_planted_mistake(fault: str) -> None:
    for seed in range(MOST_LIVES_TO_FIND):
        try:
            live(seed, fault)
        except Violation:
            return
    pytest.fail(f"{MOST_LIVES_TO_FIND} lives of a group did not show the mistake: {fault}")

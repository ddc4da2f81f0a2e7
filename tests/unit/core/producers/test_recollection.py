"""The records behind a saved place (IDEM-4): sequences that wrap, holes, and the server's memory. The histories are in
`tests/model/test_saved_ids_model.py`."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from fencepost.core.producers.pid import Identity
from fencepost.core.producers.recollection import NOWHERE, Known, PartitionFence, Recollection, SavedPlace, Taken
from fencepost.core.producers.sequence import MAX_SEQUENCE
from fencepost.types import Epoch, Offset, Pid, Sequence

pytestmark = pytest.mark.unit

Memory: TypeAlias = dict[Pid, tuple[int, int]]

PID = Pid(5)
RUN = Identity(PID, Epoch(1))
FENCE = PartitionFence(Identity(PID, Epoch(7)), Identity(PID, Epoch(8)), Offset(100))


def recollection(offset: int = 10, next_sequence: int = 0, run: Identity = RUN) -> Recollection:
    place = SavedPlace("id", Offset(offset), run, Sequence(next_sequence))
    return Recollection(place, {PID, Pid(9)}, FENCE)


def found(
    it: Recollection, end: int, remembered: dict[Pid, tuple[int, int]] | None = None
) -> list[tuple[int, int]] | None:
    known = it.finish(Offset(end), remembered or {})
    return None if known is None else [(each.sequence, each.offset) for each in known]


def meet(
    it: Recollection, first: int, offset: int, count: int, run: Identity = RUN, left: set[int] | None = None
) -> None:
    contents = {at: at for at in (range(count) if left is None else left)}
    it.meet(run, Sequence(first), contents, Offset(offset), Offset(offset + count))


def test_sequences_go_on_at_0_after_the_last_one() -> None:
    it = recollection(next_sequence=MAX_SEQUENCE - 1)
    meet(it, MAX_SEQUENCE - 1, 10, 4)
    assert found(it, 14) == [(MAX_SEQUENCE - 1, 10), (MAX_SEQUENCE, 11), (0, 12), (1, 13)]


def test_a_place_inside_a_batch_counts_the_rest_of_it() -> None:
    it = recollection(offset=12, next_sequence=2)
    meet(it, 0, 10, 5)
    assert found(it, 15) == [(2, 12), (3, 13), (4, 14)]


def test_a_place_behind_the_last_sequence_leaves_the_whole_batch_out() -> None:
    it = recollection(offset=12, next_sequence=0)
    meet(it, MAX_SEQUENCE - 1, 10, 2)
    assert found(it, 12) == []


def test_records_that_compaction_removed_count() -> None:
    it = recollection()
    meet(it, 0, 10, 3, left={1})
    meet(it, 5, 15, 1)
    expected = [(0, 10), (1, 11), (2, 12), (3, NOWHERE), (4, NOWHERE), (5, 15)]  # two of them in a batch that is gone
    assert found(it, 16) == expected


def test_a_save_behind_removed_records_of_two_pids_counts_none_of_them_again() -> None:
    """IDEM-4: the name got another pid, and compaction removed the last records under the old one and the first under
    the new one, and left their batches. A run saves in between, while it catches up."""
    old, new = Identity(Pid(9), Epoch(0)), RUN

    def read(place: SavedPlace) -> list[Known]:
        it = Recollection(place, {PID, Pid(9)}, FENCE)
        meet(it, 0, 10, 3, run=old, left=set())
        meet(it, 0, 13, 3, run=new, left={2})
        known = it.finish(Offset(16), {})
        assert known is not None
        return known

    place = SavedPlace("id", Offset(10), old, Sequence(0))
    known = read(place)
    assert len(known) == 6
    for behind in range(6):
        place = known[behind].behind(place)
        assert read(place) == known[behind + 1 :]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ((1, 3), [(2, NOWHERE), (3, NOWHERE)]),
        ((1, 1), []),
        ((1, -1), []),
        ((0, 40), []),
        ((2, 0), None),
        (None, None),
    ],
    ids=["two more", "none since", "only a marker", "an older epoch", "a newer run", "forgotten"],
)
def test_the_servers_memory_tells_what_the_deleted_end_had(
    state: tuple[int, int] | None, expected: list[tuple[int, int]] | None
) -> None:
    it = recollection(next_sequence=2)
    it.mark(FENCE.marker, Offset(50))
    assert found(it, 51, {} if state is None else {PID: state}) == expected


def test_memory_of_one_pid_says_nothing_once_the_name_has_another() -> None:
    it = recollection(next_sequence=2, run=Identity(Pid(9), Epoch(0)))
    it.mark(FENCE.marker, Offset(50))
    assert found(it, 51, {Pid(9): (0, 1)}) is None


def test_memory_from_before_the_fence_says_nothing_of_what_came_after_it() -> None:
    it = recollection(next_sequence=2)
    it.mark(FENCE.marker, Offset(101))
    assert found(it, 102, {PID: (1, 1)}) is None


def test_a_run_that_follows_a_hole_is_not_enough() -> None:
    it = recollection()
    meet(it, 0, 10, 1)
    meet(it, 0, 20, 1, run=Identity(PID, Epoch(3)))
    assert found(it, 21, {PID: (3, 0)}) is None


def test_whoever_meets_a_later_run_of_the_name_is_fenced() -> None:
    it = recollection()
    with pytest.raises(Taken):
        meet(it, 0, 10, 1, run=Identity(PID, Epoch(9)))
    with pytest.raises(Taken):
        it.mark(Identity(PID, Epoch(9)), Offset(11))


def test_other_markers_do_not_show_that_the_log_is_not_a_stale_leaders() -> None:
    it = recollection()
    it.mark(Identity(PID, Epoch(6)), Offset(10))
    it.mark(Identity(Pid(9), Epoch(7)), Offset(11))
    assert not it.is_fenced


def test_the_marker_of_its_own_fence_shows_that() -> None:
    it = recollection()
    it.mark(FENCE.marker, Offset(12))
    assert it.is_fenced
    assert not it.is_truncated


def test_a_marker_before_the_place_shows_a_truncated_log() -> None:
    it = recollection(offset=200)
    assert it.start == 100
    it.mark(FENCE.marker, Offset(100))
    assert it.is_truncated

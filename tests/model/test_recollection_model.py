"""What was written since ids were saved, against a model that forgets nothing (IDEM-4).

The model is a log of batches of one producer in several lives, and of others. Ids are saved at some moment; afterwards
retention and compaction take away what they like, and the server may forget H(P). Then what `Recollection` says must be
what was written, or nothing; and it must say something if either the records or the state of the only life is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.core.producers.recollection import Known, Life, Recollection, Written
from fencepost.core.sequence import MAX_SEQUENCE, advance
from fencepost.types import Epoch, Offset, Pid, Sequence
from tests.support.examples import examples

pytestmark = pytest.mark.model

PID = Pid(5)


@dataclass
class Batch:
    life: Life | None
    """None: somebody else's, or a marker."""
    first: int
    offset: int
    values: dict[int, int]
    length: int


@dataclass
class Log:
    origin: int
    """First sequence of the first life since the save."""
    batches: list[Batch] = field(default_factory=list)
    end: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    """(offset, value) of this producer's records."""
    state: tuple[Life, int] | None = None
    sequence: int = 0

    def append(self, life: Life | None, length: int) -> None:
        values = {}
        if life is not None:
            values = {place: 100 + self.end + place for place in range(length)}
            self.written += [(self.end + place, value) for place, value in values.items()]
            self.state = life, advance(Sequence(self.sequence), length - 1)
        self.batches.append(Batch(life, self.sequence, self.end, values, length))
        if life is not None:
            self.sequence = advance(Sequence(self.sequence), length)
        self.end += length

    def fence(self, life: Life) -> None:
        """A marker: the new epoch begins at 0."""
        self.append(None, 1)
        self.state, self.sequence = (life, -1), 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("other"), st.integers(1, 3)),
        st.tuples(st.just("fence"), st.just(1)),
    ),
    max_size=12,
)


@given(
    before=st.integers(0, 3),
    origin=st.sampled_from([0, 7, MAX_SEQUENCE - 2, MAX_SEQUENCE]),
    after=steps,
    delete_before=st.one_of(st.just(0), st.integers(0, 40)),
    holes=st.sets(st.integers(0, 40), max_size=6),
    drop_batches=st.booleans(),
    forgets=st.booleans(),
)
@settings(max_examples=examples(170), deadline=None)
def test_it_says_what_was_written_or_nothing(
    before: int,
    origin: int,
    after: list[tuple[str, int]],
    delete_before: int,
    holes: set[int],
    drop_batches: bool,
    forgets: bool,
) -> None:
    life = saved = Life(PID, Epoch(3))
    log = Log(origin, sequence=origin)
    for _ in range(before):
        log.append(life, 2)
    next_sequence, start = Sequence(log.sequence), log.end
    log.written.clear()
    for what, count in after:
        if what == "fence":
            life = Life(PID, Epoch(life.epoch + 2))
            log.fence(life)
        else:
            log.append(life if what == "write" else None, count)
    left = take_away(log, delete_before, holes, drop_batches)
    remembered = {} if forgets or log.state is None else {log.state[0]: Sequence(log.state[1])}

    recollection = Recollection(saved, next_sequence, Offset(start))
    for batch in left:
        following = Offset(batch.offset + batch.length)
        if following <= start:
            continue
        if batch.life is None:
            recollection.pass_over(Offset(batch.offset), following)
        else:
            written = Written(batch.life, Sequence(batch.first), batch.values)
            recollection.meet(written, Offset(batch.offset), following)
    found = recollection.finish(Offset(log.end), remembered)

    everything_is_left = sum(batch.length for batch in left if batch.offset >= start) == log.end - start
    if everything_is_left or (life == saved and remembered):
        assert found is not None
    if found is not None:
        assert len(found) == len(log.written)
        there = {batch.offset + place: value for batch in left for place, value in batch.values.items()}
        for known, (offset, value) in zip(found, log.written, strict=True):
            assert known in (Known(), Known(Offset(offset), value))
            assert (offset in there) == (known.content is not None)


def take_away(log: Log, delete_before: int, holes: set[int], drop_batches: bool) -> list[Batch]:
    left = [batch for batch in log.batches if batch.offset + batch.length > delete_before]
    for batch in left:
        for place in list(batch.values):
            if batch.offset + place in holes:
                del batch.values[place]
    if drop_batches:  # as compaction does, but never the newest of a producer that the server remembers
        newest = max((batch.offset for batch in left if batch.life is not None), default=-1)
        left = [batch for batch in left if batch.values or batch.life is None or batch.offset == newest]
    return left


def test_a_partition_missing_from_the_ids_is_filled_in_from_the_servers_memory() -> None:
    life = Life(PID, Epoch(3))
    recollection = Recollection(life, None, None)
    assert recollection.finish(Offset(50), {life: Sequence(2)}) == [Known()] * 3


def test_of_a_life_before_the_ids_only_what_is_in_the_log_counts() -> None:
    """The server may remember a run of long ago, which wrote to a partition that the ids do not know."""
    old = Life(PID, Epoch(1))
    recollection = Recollection(Life(PID, Epoch(3)), None, None)
    recollection.meet(Written(old, Sequence(7), {0: 11}), Offset(40), Offset(41))
    assert recollection.finish(Offset(41), {old: Sequence(9)}) == [Known(Offset(40), 11)]

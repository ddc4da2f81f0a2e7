"""Arithmetic of sequences: the only file that knows where they wrap.

Sequences count 0 … 2**31 − 1 and then start again at 0. Which of two is "before" the other is therefore a question of
the shorter way round the circle; nobody has 2**30 records in flight, so the shorter way is always the right one.
"""

from fencepost.types import Sequence

MAX_SEQUENCE = Sequence(2**31 - 1)
_MODULUS = 2**31
_HALF = 2**30
FURTHEST = _HALF
"""The longest distance that can be told from one in the other direction."""


def advance(sequence: Sequence, count: int) -> Sequence:
    """The sequence `count` records after `sequence` (or before it, if negative)."""
    return Sequence((sequence + count) % _MODULUS)


def following(sequence: Sequence) -> Sequence:
    """The sequence after `sequence`; after MAX_SEQUENCE comes 0."""
    return advance(sequence, 1)


def last_of(first: Sequence, count: int) -> Sequence:
    """The last sequence of a batch of `count` records that starts with `first`."""
    return advance(first, count - 1)


def distance(start: Sequence, end: Sequence) -> int:
    """How many records `end` lies after `start`; negative if it lies before."""
    ahead = (end - start) % _MODULUS
    return ahead if ahead < _HALF else ahead - _MODULUS

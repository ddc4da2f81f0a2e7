"""Arithmetic of sequences: the only file that knows where they wrap.

Sequences count 0 … 2**31 − 1 and then start again at 0. Which of two comes first is decided by the shorter way round
the circle: nobody has 2**30 records in flight, so the shorter way is always right.
"""

from fencepost.types import Sequence

MAX_SEQUENCE = Sequence(2**31 - 1)
_MODULUS = 2**31
_HALF = 2**30
FURTHEST = _HALF
"""The longest distance whose direction is unambiguous."""


def advance(sequence: Sequence, count: int) -> Sequence:
    """Return the sequence `count` records after `sequence` (before it, if negative)."""
    return Sequence((sequence + count) % _MODULUS)


def following(sequence: Sequence) -> Sequence:
    """Return the sequence after `sequence`; after MAX_SEQUENCE comes 0."""
    return advance(sequence, 1)


def last_of(first: Sequence, count: int) -> Sequence:
    """Return the last sequence of a batch of `count` records that starts with `first`."""
    return advance(first, count - 1)


def distance(start: Sequence, end: Sequence) -> int:
    """Return how many records `end` lies after `start`; negative if it lies before."""
    ahead = (end - start) % _MODULUS
    return ahead if ahead < _HALF else ahead - _MODULUS

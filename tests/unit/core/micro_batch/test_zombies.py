"""Warnings of a sink's zombies, and what is not certain enough for one."""

from __future__ import annotations

import pytest

from fencepost.core.micro_batch.protocol import Progress
from fencepost.core.micro_batch.zombies import FencedWrite, WrittenProgress, story_of
from fencepost.core.producers.pid import Identity
from fencepost.types import Epoch, Pid

pytestmark = pytest.mark.unit

A, B, C = "a" * 32, "b" * 32, "c" * 32


def written(token: str, epoch: int, process: int = 1, host: str = "here", pid: int = 7) -> WrittenProgress:
    return WrittenProgress(Progress("q", epoch, epoch, token, host, process, 0), Identity(Pid(pid), Epoch(epoch)))


def fenced(epoch: int, current: int, pid: int = 7) -> FencedWrite:
    who = Identity(Pid(pid), Epoch(epoch))
    return FencedWrite(who, Identity(Pid(pid), Epoch(current)), 1, "10.0.0.5:4711", "client")


TWO = [written(A, 3), written(A, 5), written(B, 8), written(B, 9)]


@pytest.mark.parametrize("epoch", [3, 5, 6, 7])
def test_a_write_from_before_the_current_incarnation_is_late(epoch: int) -> None:
    story = story_of(TWO)
    assert story is not None
    assert story.is_late(fenced(epoch, 9))


@pytest.mark.parametrize(
    "write",
    [
        fenced(8, 9),  # the current one's own task of an earlier batch
        fenced(3, 7),  # refused before the current one had announced itself
        fenced(3, 9, pid=6),  # another pid: its epochs tell nothing
    ],
)
def test_another_refused_write_is_no_warning(write: FencedWrite) -> None:
    story = story_of(TWO)
    assert story is not None
    assert not story.is_late(write)


def test_without_the_announcement_nothing_is_certain() -> None:
    story = story_of(TWO[2:])
    assert story is not None
    assert story.last == TWO[-1].progress
    assert not story.is_late(fenced(3, 9))
    assert story_of([]) is None


def test_two_processes_that_alternate_are_rivals() -> None:
    records = [written(A, 3, 1), written(B, 5, 2), written(C, 8, 1), written(C, 9, 1)]
    story = story_of(records)
    assert story is not None
    assert [each.process for each in story.rivals or ()] == [1, 2]


@pytest.mark.parametrize(
    "records",
    [
        [written(A, 3, 1), written(B, 5, 2), written(C, 8, 3)],  # restarts
        [written(A, 3, 1), written(B, 5, 1), written(C, 8, 1)],  # new sinks in one process
        [written(A, 3, 1), written(B, 5, 1, "there"), written(C, 8, 2)],  # a host, but another process
        [written("run-1", 3, 1), written("run-2", 5, 2), written("run-3", 8, 1)],  # many processes act for one run
    ],
)
def test_restarts_are_no_rivals(records: list[WrittenProgress]) -> None:
    story = story_of(records)
    assert story is not None
    assert story.rivals is None

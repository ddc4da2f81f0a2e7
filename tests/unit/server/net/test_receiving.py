"""Frames are cut from the stream as they were sent, whatever pieces it comes in and wherever their bytes are kept."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import pytest

from fencepost.server.api.k00_produce import API as PRODUCE
from fencepost.server.api.k03_metadata import API as METADATA
from fencepost.server.net.receiving import Frame, FrameReceiver
from fencepost.server.net.request_memory import RequestMemory

pytestmark = pytest.mark.unit

_KIB = 1024
_PRODUCE_SIZES = (8, 100, 16 * _KIB, 64 * _KIB, 100 * _KIB, 300 * _KIB, 1024 * _KIB, 4096 * _KIB, 5000 * _KIB)


class Patient:
    """A connection that never has to wait for memory."""

    def memory_freed(self) -> None:
        raise AssertionError("nobody waited")


def receiver(memory: RequestMemory, inbox: deque[Frame]) -> FrameReceiver:
    apis = {PRODUCE.key: PRODUCE, METADATA.key: METADATA}
    return FrameReceiver(memory, apis, 100 << 20, inbox, waiter=Patient(), monotonic=lambda: 0.0)


def feed(ours: FrameReceiver, stream: bytes, most: int, source: random.Random) -> None:
    view = memoryview(stream)
    while view:
        buffer = ours.get_buffer()
        taken = min(len(buffer), len(view), source.randint(1, most))
        buffer[:taken] = view[:taken]
        ours.received(taken)
        view = view[taken:]


def frame_of(key: int, size: int, source: random.Random) -> bytes:
    return key.to_bytes(2, "big") + source.randbytes(size - 2)


@pytest.mark.parametrize("most", [900, 40_000, 2 << 20])
def test_frames_arrive_as_they_were_sent(most: int) -> None:
    source = random.Random(most)
    memory, inbox = RequestMemory(64 << 20), deque[Frame]()
    ours = receiver(memory, inbox)
    # Each size twice, in any order: a frame may get memory that holds the bytes of an earlier one.
    sizes = source.sample(_PRODUCE_SIZES * 2, 2 * len(_PRODUCE_SIZES))
    sent = [frame_of(PRODUCE.key, size, source) for size in sizes]
    sent += [frame_of(METADATA.key, size, source) for size in (20, 200 * _KIB)]
    for whole in sent:
        feed(ours, len(whole).to_bytes(4, "big") + whole, most, source)
        received = inbox.popleft()
        assert bytes(received) == whole
        assert memory.used == len(whole)
        memory.release(len(whole))
        del received


def test_several_small_frames_come_out_of_one_read() -> None:
    source = random.Random(1)
    memory, inbox = RequestMemory(64 << 20), deque[Frame]()
    ours = receiver(memory, inbox)
    large = frame_of(PRODUCE.key, 1024 * _KIB, source)
    small = [frame_of(PRODUCE.key, 50, source) for _ in range(20)]
    stream = b"".join(len(whole).to_bytes(4, "big") + whole for whole in [large, *small, large])
    feed(ours, stream, len(stream), source)
    assert [bytes(received) for received in inbox] == [large, *small, large]


def test_memory_is_charged_as_bytes_arrive() -> None:
    """A length that is only announced costs nothing, although the buffer of a frame is allocated whole."""
    source = random.Random(2)
    memory, inbox = RequestMemory(64 << 20), deque[Frame]()
    ours = receiver(memory, inbox)
    whole = frame_of(PRODUCE.key, 4096 * _KIB, source)
    stream = len(whole).to_bytes(4, "big") + whole
    feed(ours, stream[:1000], 1000, source)
    assert memory.used <= 64 * _KIB
    feed(ours, stream[1000 : 70 * _KIB], 70 * _KIB, source)
    assert memory.used < 2048 * _KIB
    ours.discard()
    assert memory.used == 0


class OnlyCounted(deque[Frame]):
    """Thousands of frames: whoever walks through them for each one takes tens of milliseconds of the loop."""

    def __iter__(self) -> Iterator[Frame]:
        raise AssertionError("the frames that wait were counted one by one")


def test_a_read_of_thousands_of_small_frames_does_not_walk_through_them_for_each() -> None:
    source = random.Random(2)
    inbox = OnlyCounted()
    ours = receiver(RequestMemory(64 << 20), inbox)
    small = [frame_of(METADATA.key, 8 + number % 30, source) for number in range(3_000)]
    feed(ours, b"".join(len(whole).to_bytes(4, "big") + whole for whole in small), 256 * _KIB, source)
    assert ours.queued == sum(map(len, small))
    assert [bytes(inbox.popleft()) for _ in small] == small

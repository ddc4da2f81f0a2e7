"""Attacks on the memory for requests: frames that are promised, half sent, or never worked off."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from struct import pack

import pytest

from fencepost.wire import frame
from tests.support.attacks import MIB, Siege
from tests.support.batches import batch
from tests.support.raw import METADATA, PRODUCE, RawClient

pytestmark = pytest.mark.hostile

LARGEST = 100 * MIB


def promise(client: RawClient, size: int, *, arrived: int = 0, key: int = PRODUCE) -> None:
    """Announces a frame of `size` bytes and sends only some of them."""
    client.send_bytes(pack(">i", size))
    if arrived:
        head = frame.request_head(key, 9, 1, "attacker")
        client.send_bytes(head)
        for at in range(len(head), arrived, MIB):
            client.send_bytes(bytes(min(MIB, arrived - at)))


def test_a_length_without_a_frame_costs_nobody_anything(siege: Siege) -> None:
    with siege.attack("a length of 100 MiB and no more, on many sockets"), ExitStack() as stack:
        for _ in range(siege.size(20, 500)):
            promise(stack.enter_context(siege.connect()), LARGEST)
        siege.linger(siege.size(20, 200))


def test_the_first_bytes_of_large_frames_hold_up_nobody(siege: Siege) -> None:
    with siege.attack("the first kilobyte of 100 MiB, on many sockets"), ExitStack() as stack:
        for _ in range(siege.size(50, 1000)):
            promise(stack.enter_context(siege.connect()), LARGEST, arrived=1024)
        siege.linger(siege.size(20, 200))


def test_large_frames_that_never_end_fill_their_own_memory_only(siege: Siege) -> None:
    with siege.attack("half of a large frame, until the memory is full"), ExitStack() as stack:
        for _ in range(siege.size(6, 12)):
            client = stack.enter_context(siege.connect(timeout=1))
            with suppress(TimeoutError):  # at some point the server reads no more
                promise(client, LARGEST, arrived=siege.size(30, 60) * MIB)
        siege.linger(siege.size(20, 500))


def test_large_requests_pass_those_that_never_end(siege: Siege) -> None:
    with siege.connect() as client:
        siege.create_topic("target")
        with siege.attack("large requests beside large ones that never end"), ExitStack() as stack:
            for _ in range(5):
                promise(stack.enter_context(siege.connect()), LARGEST, arrived=siege.size(25, 50) * MIB)
            for _ in range(siege.size(2, 20)):
                # Refused, since it is larger than a topic takes by default, but only when it was there.
                assert client.produce("target", batch([bytes(8 * MIB)])).error.name == "MESSAGE_TOO_LARGE"


def test_small_frames_that_never_end_hold_up_no_small_request(siege: Siege) -> None:
    with siege.attack("all but the last byte of 1 MiB, on many sockets"), ExitStack() as stack:
        for _ in range(siege.size(40, 600)):
            client = stack.enter_context(siege.connect(timeout=1))
            with suppress(TimeoutError):
                promise(client, MIB, arrived=MIB - 1)
        siege.linger(siege.size(20, 200))


def test_requests_of_a_client_that_does_not_read_do_not_pile_up(siege: Siege) -> None:
    siege.create_topic("target")
    with siege.attack("pipelined requests, and no answer read"), ExitStack() as stack:
        for _ in range(siege.size(4, 40)):
            deaf = stack.enter_context(siege.connect(timeout=0.5))
            with suppress(OSError):
                for _ in range(siege.size(20_000, 100_000)):
                    deaf.send_fetch("target", 0)
                for _ in range(100):
                    deaf.send_produce("target", batch([bytes(MIB // 2)]))
        siege.linger(siege.size(20, 200))


def test_only_produce_may_be_large(siege: Siege) -> None:
    with siege.attack("a Metadata request of 8 MiB"), siege.connect() as client:
        promise(client, 8 * MIB, arrived=64, key=METADATA)
        assert client.is_closed_by_server()

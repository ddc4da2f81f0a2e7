"""Records one at a time: each is awaited before the next one is sent, on both servers."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import pytest

from fencepost.client.aio import AsyncProducer
from fencepost.client.produce.ticket import Ticket
from fencepost.client.producer import Producer
from fencepost.errors import FencepostError, SendFailed, TimedOut
from tests.integration.conftest import TestedServer
from tests.integration.test_producer_basics import read_all
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Api, DelayedAnswer, Fate

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(server: TestedServer) -> Iterator[Proxy]:
    with Proxy(server.address) as proxy:
        yield proxy


def test_records_one_by_one_arrive_in_order(server: TestedServer, client: RawClient, topic: str) -> None:
    with Producer(server.address) as producer:
        for number in range(500):
            assert producer.send(topic, b"%d" % number, partition=0).result(20).offset == number
    assert read_all(client, topic) == [b"%d" % number for number in range(500)]


def test_any_timeout_is_accepted(server: TestedServer, topic: str) -> None:
    with Producer(server.address) as producer:
        for timeout in (float("inf"), 1e9, 1e300):
            assert producer.send(topic, b"v").result(timeout).offset >= 0


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
def test_single_records_are_compressed(server: TestedServer, client: RawClient, topic: str, compression: str) -> None:
    with Producer(server.address, compression=compression) as producer:  # type: ignore[arg-type]
        for number in range(50):
            producer.send(topic, b"%d" % number * 100, partition=0).result(20)
    assert read_all(client, topic) == [b"%d" % number * 100 for number in range(50)]


def test_many_threads_send_one_by_one(server: TestedServer, client: RawClient, topic: str) -> None:
    failed: list[BaseException] = []

    def send(thread: int) -> None:
        try:
            for number in range(100):
                producer.send(topic, b"%d %d" % (thread, number), partition=0).result(20)
        except BaseException as error:
            failed.append(error)

    with Producer(server.address) as producer:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    arrived = [value.split() for value in read_all(client, topic) if value is not None]
    assert len(arrived) == 400
    for number in range(4):
        assert [int(second) for first, second in arrived if int(first) == number] == list(range(100))


def test_a_record_is_settled_although_nobody_waits_for_it(server: TestedServer, topic: str) -> None:
    with Producer(server.address) as producer:
        ticket, until = producer.send(topic, b"v"), time.monotonic() + 20
        while not ticket.done():
            assert time.monotonic() < until
        assert ticket.exception(0) is None


def test_a_callback_runs_on_the_send_thread_while_its_caller_waits(proxy: Proxy, topic: str) -> None:
    with Producer(proxy.address) as producer:
        producer.send(topic, b"first").result(20)
        proxy.next(Api.PRODUCE, DelayedAnswer(0.1))
        ticket, on = producer.send(topic, b"v"), list[str]()
        ticket.add_done_callback(lambda _: on.append(threading.current_thread().name))
        ticket.result(20)
        producer.flush(20)
        assert on == ["fencepost-send"]


def test_a_result_that_takes_too_long_times_out_and_comes_later(proxy: Proxy, topic: str) -> None:
    with Producer(proxy.address) as producer:
        producer.send(topic, b"first", partition=0).result(20)
        proxy.next(Api.PRODUCE, DelayedAnswer(0.5))
        ticket = producer.send(topic, b"v", partition=0)
        with pytest.raises(TimedOut):
            ticket.result(0.05)
        assert ticket.result(20).offset == 1


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.LOSE])
def test_a_lost_answer_is_followed_by_a_retry(proxy: Proxy, client: RawClient, topic: str, fate: Fate) -> None:
    """IDEM-6."""
    with Producer(proxy.address) as producer:
        for number in range(10):
            if number % 2:
                proxy.next(Api.PRODUCE, fate)
            producer.send(topic, b"%d" % number, partition=0).result(20)
    assert read_all(client, topic) == [b"%d" % number for number in range(10)]


def test_an_answer_that_never_comes_is_noticed(proxy: Proxy, topic: str) -> None:
    with Producer(proxy.address, request_timeout=0.5, delivery_timeout=20) as producer:
        producer.send(topic, b"first", partition=0).result(20)
        proxy.next(Api.PRODUCE, Fate.SWALLOW)
        assert producer.send(topic, b"second", partition=0).result(20).offset == 1


def test_a_record_expires_while_its_caller_waits(proxy: Proxy, topic: str) -> None:
    with Producer(proxy.address, delivery_timeout=2.0) as producer:
        while producer.send(topic, b"first", partition=0).exception(20) is not None:
            pass  # on a busy machine the first ones expire before there is a connection
        proxy.next(Api.PRODUCE, Fate.SWALLOW)
        error = producer.send(topic, b"second", partition=0).exception(20)
        assert isinstance(error, SendFailed)
        assert error.persisted == "unknown"


def await_waiting(ticket: Ticket) -> None:
    """Return when another thread waits for the ticket."""
    while not ticket.settlement._waiting:
        time.sleep(0.001)  # nothing else tells


def test_closing_ends_a_caller_that_waits(proxy: Proxy, topic: str) -> None:
    producer = Producer(proxy.address)
    producer.send(topic, b"first", partition=0).result(20)
    proxy.next(Api.PRODUCE, Fate.SWALLOW)
    ticket, outcome = producer.send(topic, b"second", partition=0), list[FencepostError | None]()
    waiting = threading.Thread(target=lambda: outcome.append(ticket.exception(20)))
    waiting.start()
    await_waiting(ticket)
    with contextlib.suppress(FencepostError):  # unless the other thread has seen it first
        producer.close(0)
    waiting.join(20)
    assert isinstance(outcome[0], SendFailed)
    assert "closed" in str(outcome[0])


def test_a_fork_while_a_caller_waits_leaves_the_parent_its_answer(proxy: Proxy, topic: str) -> None:
    with Producer(proxy.address) as producer:
        producer.send(topic, b"first", partition=0).result(20)
        proxy.next(Api.PRODUCE, DelayedAnswer(1.0))
        ticket, outcome = producer.send(topic, b"second", partition=0), list[FencepostError | None]()
        waiting = threading.Thread(target=lambda: outcome.append(ticket.exception(20)))
        waiting.start()
        await_waiting(ticket)

        def use_both() -> None:
            with pytest.raises(SendFailed, match="forked"):
                ticket.result(20)
            producer.send(topic, b"child", partition=0).result(20)

        child = multiprocessing.get_context("fork").Process(target=use_both)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        waiting.join(20)
        assert outcome == [None]


class Interrupted(BaseException):
    """What the handler of the test's signal raises."""


@pytest.mark.parametrize("beside_a_flood", [False, True], ids=["alone", "beside a flood"])
def test_an_interrupt_at_any_point_loses_and_repeats_nothing(
    server: TestedServer, client: RawClient, topic: str, beside_a_flood: bool
) -> None:
    """IDEM-1: wherever a signal handler raises in `send` or `result`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    chance = random.Random(1)
    tickets: dict[bytes, Ticket] = {}
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts = 0
    try:
        with (
            Producer(server.address, delivery_timeout=30) as producer,
            flood(producer, f"{topic}-flood") if beside_a_flood else nullcontext(),
        ):
            producer.send(topic, b"first", partition=0).result(20)
            for number in range(500 if beside_a_flood else 1500):
                value = b"%d" % number
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, 2e-3 if beside_a_flood else 4e-4))
                    ticket = tickets[value] = producer.send(topic, value, partition=0)
                    ticket.result(20)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            for ticket in tickets.values():
                ticket.result(30)
            producer.send(topic, b"last", partition=0).result(20)
        assert producer._sender.queues.is_empty
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 100
    log = [value for value in read_all(client, topic) if value is not None]
    assert log[0] == b"first"
    assert log[-1] == b"last"
    numbers = [int(value) for value in log[1:-1]]
    assert numbers == sorted(set(numbers)), "each at most once, and in order"
    for value, ticket in tickets.items():
        assert log[ticket.result(0).offset] == value


@contextmanager
def flood(producer: Producer, topic: str) -> Iterator[None]:
    """Send to this topic on another thread, and have the others take the side connection whenever it is in flight."""
    producer._sender.dispatch.busy = 1
    over = threading.Event()

    def pour() -> None:
        pending: deque[Ticket] = deque()
        while not over.is_set():
            pending.append(producer.send(topic, b"x" * 1000, partition=0))
            if len(pending) > 500:
                pending.popleft().result(60)

    producer.send(topic, b"first", partition=0).result(20)
    pouring = threading.Thread(target=pour)
    pouring.start()
    try:
        yield
    finally:
        over.set()
        pouring.join()


def test_records_beside_a_flood_arrive_in_order_and_some_take_the_side_connection(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    """PROD-4, PROD-6."""
    number = 0
    with Producer(server.address, delivery_timeout=60) as producer, flood(producer, f"{topic}-flood"):
        brokers = producer._sender.brokers
        while not any(
            side._correlation_id > 30 for each in brokers if (side := brokers.side(each.address)) is not None
        ):
            ticket = producer.send(topic, b"%d" % number, partition=0)
            if number % 3:
                assert ticket.result(60).offset == number
            number += 1
    assert read_all(client, topic) == [b"%d" % each for each in range(number)]


# --- awaited ---


@pytest.mark.parametrize("has_epoll", [True, False], ids=["epoll", "no epoll"])
def test_awaited_records_arrive_in_order(
    server: TestedServer, client: RawClient, topic: str, has_epoll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[int]:
        async with AsyncProducer(server.address) as producer:
            return [(await producer.send(topic, b"%d" % number, partition=0)).offset for number in range(100)]

    if not has_epoll:
        monkeypatch.setattr(selectors, "DefaultSelector", selectors.PollSelector)
    assert asyncio.run(main()) == list(range(100))
    assert read_all(client, topic) == [b"%d" % number for number in range(100)]


def test_a_cancelled_wait_cancels_nothing_else(proxy: Proxy, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(proxy.address) as producer:
            await producer.send(topic, b"first", partition=0)
            proxy.next(Api.PRODUCE, DelayedAnswer(0.3))
            ticket = producer.send(topic, b"second", partition=0)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.ensure_future(ticket), 0.05)
            assert (await ticket).offset == 1
            assert (await producer.send(topic, b"third", partition=0)).offset == 2

    asyncio.run(main())


def test_an_awaited_record_whose_answer_is_lost_is_sent_again(proxy: Proxy, client: RawClient, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(proxy.address) as producer:
            for number in range(5):
                if number:
                    proxy.next(Api.PRODUCE, Fate.CUT)
                await asyncio.wait_for(asyncio.ensure_future(producer.send(topic, b"%d" % number, partition=0)), 20)

    asyncio.run(main())
    assert read_all(client, topic) == [b"%d" % number for number in range(5)]

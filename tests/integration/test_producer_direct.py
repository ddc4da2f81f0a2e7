"""The direct way: one record at a time, written and read by the caller's own thread, on both servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import random
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from types import FrameType, TracebackType
from typing import Any, Self
from unittest.mock import patch

import pytest

from fencepost.client.aio import AsyncProducer
from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce import direct as direct_way
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.produce.ticket import Settlement, Ticket
from fencepost.client.producer import Producer
from fencepost.errors import FencepostError, SendFailed, TimedOut
from tests.integration.conftest import TestedServer
from tests.integration.test_producer_basics import read_all
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Api, DelayedAnswer, Fate

pytestmark = pytest.mark.integration


def went_directly(ticket: Ticket) -> bool:
    return isinstance(ticket.settlement, ProducerBatch) and ticket.settlement.request is not None


@pytest.fixture
def warm(server: TestedServer, topic: str) -> Iterator[Producer]:
    """A producer that has sent its first record, and whose send thread sleeps."""
    with Producer(server.address, delivery_timeout=60, request_timeout=40) as producer:
        for _ in range(3):  # a topic's first records also look up their partitions and a pid
            producer.send(topic, b"first", partition=0).result(20)
        yield producer


@contextmanager
def before_a_direct_write(what: Callable[[], object]) -> Iterator[None]:
    """Call it when a record is about to be written directly, and for no record that the send thread sends."""
    write = BrokerConnection.write_now

    def write_then(connection: BrokerConnection, *arguments: Any) -> bool:
        what()
        return write(connection, *arguments)

    with patch.object(BrokerConnection, "write_now", write_then):
        yield


_numbers = count()


def send_directly(producer: Producer, topic: str, first: Callable[[], object] = bool) -> Ticket:
    """Send numbered records, until one finds the send thread asleep: it may be about to fall asleep, and it wakes up by
    itself. `first` is called just before that one is written: a fate set earlier could meet another record."""
    while True:
        with before_a_direct_write(first):
            ticket = producer.send(topic, b"%d" % next(_numbers), partition=0)
        if went_directly(ticket):
            return ticket
        ticket.result(20)


class Hold:
    """A proxy that carries nothing between `begin` and `end`, so that no answer comes before the test wants it."""

    def __init__(self, proxy: Proxy) -> None:
        self._loop = proxy._loop
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def begin(self) -> None:
        """What is written after this is not carried: the loop runs what it is told in that order."""
        self._loop.call_soon_threadsafe(self._is_over.wait, 100)

    def end(self) -> None:
        self._is_over.set()

    @contextmanager
    def until_a_caller_reads(self, producer: Producer) -> Iterator[None]:
        """End it when a caller of `result` has the sockets, and waits for them."""
        network = producer._sender.direct._network
        wait = network.wait

        def end_and_wait(timeout: float | None) -> bool:
            self.end()
            return wait(timeout)

        with patch.object(network, "wait", end_and_wait):  # only callers use it
            yield


def test_records_one_by_one_arrive_in_order(warm: Producer, client: RawClient, topic: str) -> None:
    number = directly = 0
    while number < 500 or directly <= 100:  # on a busy machine the send thread is often awake
        ticket = warm.send(topic, b"%d" % number, partition=0)
        number += 1
        assert ticket.result(20).offset == 2 + number
        directly += went_directly(ticket)
    assert read_all(client, topic)[3:] == [b"%d" % each for each in range(number)]


def test_records_without_key_or_partition_go_directly_too(server: TestedServer, topic: str) -> None:
    with Producer(server.address) as producer:
        tickets: list[Ticket] = []
        while not any(map(went_directly, tickets)):
            tickets.append(producer.send(topic, b"v"))
            tickets[-1].result(20)


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
def test_a_compressed_record_goes_directly(
    server: TestedServer, client: RawClient, topic: str, compression: str
) -> None:
    with Producer(server.address, compression=compression) as producer:  # type: ignore[arg-type]
        tickets: list[Ticket] = []
        while len(tickets) < 50 or not any(map(went_directly, tickets)):
            tickets.append(producer.send(topic, b"%d" % len(tickets) * 100, partition=0))
            tickets[-1].result(20)
    assert read_all(client, topic) == [b"%d" % number * 100 for number in range(len(tickets))]


def test_many_threads_send_one_by_one(warm: Producer, client: RawClient, topic: str) -> None:
    failed: list[BaseException] = []

    def send(thread: int) -> None:
        try:
            for number in range(100):
                warm.send(topic, b"%d %d" % (thread, number), partition=0).result(20)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    arrived = [value.split() for value in read_all(client, topic)[3:] if value is not None]
    assert len(arrived) == 400
    for number in range(4):
        assert [int(second) for first, second in arrived if int(first) == number] == list(range(100))


def test_what_nobody_waits_for_is_settled_by_the_send_thread(warm: Producer, topic: str) -> None:
    for way in ("flush", "callback", "done"):
        for _ in range(20):
            send_directly(warm, topic).result(20)
        ticket = send_directly(warm, topic)
        if way == "flush":
            warm.flush(20)
        elif way == "callback":
            called = threading.Event()
            ticket.add_done_callback(lambda _: called.set())  # noqa: B023
            assert called.wait(20)
        until = time.monotonic() + 20
        while not ticket.done():
            assert time.monotonic() < until
        assert ticket.exception(0) is None


def test_a_callback_runs_on_the_send_thread_while_its_caller_reads(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer:
        producer.send(topic, b"first", partition=0).result(20)
        for _ in range(10):
            send_directly(producer, topic).result(20)
            hold = Hold(proxy)
            ticket, on = send_directly(producer, topic, hold.begin), list[str]()
            called = threading.Event()

            def note(ticket: Ticket, on: list[str] = on, called: threading.Event = called) -> None:
                on.append(threading.current_thread().name)
                called.set()

            ticket.add_done_callback(note)
            with hold, hold.until_a_caller_reads(producer):
                ticket.result(20)
            assert called.wait(20)
            assert on == ["fencepost-send"]


def test_a_result_that_takes_too_long_times_out_and_comes_later(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer, Hold(proxy) as hold:
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        ticket = send_directly(producer, topic, hold.begin)
        with pytest.raises(TimedOut):
            ticket.result(0.05)
        hold.end()
        assert ticket.result(20).offset >= 2


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.LOSE])
def test_a_lost_answer_is_followed_by_a_retry(server: TestedServer, client: RawClient, topic: str, fate: Fate) -> None:
    """IDEM-6: the caller that reads notices the loss, and leaves it to the send thread."""
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer:
        for _ in range(5):
            send_directly(producer, topic).result(20)
            send_directly(producer, topic, lambda: proxy.next(Api.PRODUCE, fate)).result(20)
    log = [int(value or b"") for value in read_all(client, topic)]
    assert log == list(range(log[0], log[0] + len(log))), "each once, and in order"


def test_an_answer_that_never_comes_is_noticed_by_the_send_thread(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address, request_timeout=0.5, delivery_timeout=20) as producer:
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        ticket = send_directly(producer, topic, lambda: proxy.next(Api.PRODUCE, Fate.SWALLOW))
        assert ticket.result(20).offset >= 2


def test_a_record_expires_while_its_caller_reads(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address, delivery_timeout=2.0) as producer:
        while producer.send(topic, b"first", partition=0).exception(20) is not None:
            pass  # on a busy machine the first ones expire before there is a connection
        error = send_directly(producer, topic, lambda: proxy.next(Api.PRODUCE, Fate.SWALLOW)).exception(20)
        assert isinstance(error, SendFailed)
        assert error.persisted == "unknown"


def is_waited_for(producer: Producer, ticket: Ticket) -> bool:
    """Return True when another thread waits for the ticket, probably for the sockets; False if it is settled first."""
    while not producer._sender.direct.is_read and not ticket.settlement._waiting:
        if ticket.settlement.settled:
            return False
        time.sleep(0.001)  # nothing else tells
    return True


def test_closing_ends_a_caller_that_reads(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy:
        producer = Producer(proxy.address)
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        ticket = send_directly(producer, topic, lambda: proxy.next(Api.PRODUCE, Fate.SWALLOW))
        outcome: list[FencepostError | None] = []
        reader = threading.Thread(target=lambda: outcome.append(ticket.exception(20)))
        reader.start()
        assert is_waited_for(producer, ticket)
        with contextlib.suppress(FencepostError):  # unless the reader has seen it first
            producer.close(0)
        reader.join(20)
        assert isinstance(outcome[0], SendFailed)
        assert "closed" in str(outcome[0])


def test_a_fork_while_a_caller_reads_leaves_the_parent_its_answer(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer:
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        while True:
            ticket = send_directly(producer, topic, lambda: proxy.next(Api.PRODUCE, DelayedAnswer(1.0)))
            outcome: list[FencepostError | None] = []
            reader = threading.Thread(target=lambda ticket=ticket, to=outcome: to.append(ticket.exception(20)))
            reader.start()
            if is_waited_for(producer, ticket):
                break
            reader.join(20)  # on a busy machine the answer may have come before
        child = multiprocessing.get_context("fork").Process(
            target=lambda: producer.send(topic, b"child", partition=0).result(20)
        )
        child.start()
        child.join(30)
        assert child.exitcode == 0
        reader.join(20)
        assert outcome == [None]


def test_a_record_that_is_being_sent_when_the_send_thread_ends_is_settled(
    warm: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, thread = warm._sender.direct, warm._thread
    assert thread is not None
    send_directly(warm, topic).result(20)
    send, close, take = direct.send, direct.close, warm._queues.take_only
    is_accepted, is_ending, is_taken = threading.Event(), threading.Event(), threading.Event()

    def send_at_the_end(queue: PartitionQueue) -> bool:
        is_accepted.set()
        assert is_ending.wait(20)
        return send(queue)

    def close_then() -> None:
        is_ending.set()
        is_taken.wait(20)  # else the direct way may be over already
        close()

    def take_and_wait(queue: PartitionQueue, most: int) -> ProducerBatch | None:
        batch = take(queue, most)
        is_taken.set()
        thread.join(0.5)  # it must not end while the batch is in no queue and no flight
        return batch

    # The send thread may take a turn before it stops, and would then send the record itself and read the answer.
    monkeypatch.setattr(warm._sender.dispatch, "dispatch", lambda now: None)
    warm._sender.call(lambda: None)  # no turn that has begun before dispatches any more
    monkeypatch.setattr(warm._queues, "send_now", send_at_the_end)
    monkeypatch.setattr(direct, "close", close_then)
    monkeypatch.setattr(warm._queues, "take_only", take_and_wait)
    tickets: list[Ticket] = []
    sending = threading.Thread(target=lambda: tickets.append(warm.send(topic, b"v", partition=0)))
    sending.start()
    assert is_accepted.wait(20)
    warm._sender.stop()
    sending.join(20)
    assert is_taken.is_set()
    thread.join(20)  # else this thread may still read the answer
    assert isinstance(tickets[0].exception(20), SendFailed)
    assert warm._sender.queues.is_empty


def close_at_once(producer: Producer) -> None:
    with contextlib.suppress(FencepostError):
        producer.close(0)


def test_sockets_that_are_lent_and_taken_back_at_once_are_read(
    warm: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, network = warm._sender.direct, warm._sender.direct._network
    lend = network.lend

    def lend_while_another_thread_hands_over() -> None:
        direct.hand_over()
        lend()

    for _ in range(10):
        monkeypatch.setattr(network, "lend", lend)
        send_directly(warm, topic).result(20)
        direct._eager_until = float("inf")
        monkeypatch.setattr(network, "lend", lend_while_another_thread_hands_over)
        send_directly(warm, topic)
        warm.flush(20)  # before the request times out


def test_a_result_where_the_turn_is_the_callers_own_raises_at_once(server: TestedServer, topic: str) -> None:
    """As in a signal handler that interrupts `send`: nobody else can settle it."""
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer, Hold(proxy) as hold:
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        ticket, raised = send_directly(producer, topic, hold.begin), list[BaseException]()

        def ask() -> None:
            with producer._sender._turn:
                hold.end()  # from now on, nobody else can settle it
                try:
                    ticket.result()
                except BaseException as error:
                    raised.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(20)
        assert [type(error) for error in raised] == [FencepostError]
        ticket.result(20)


def test_any_timeout_is_accepted(warm: Producer, topic: str) -> None:
    for timeout in (float("inf"), 1e9, 1e300):
        assert send_directly(warm, topic).result(timeout).offset >= 0


def test_a_ticket_of_the_parent_raises_in_a_forked_child(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer, Hold(proxy) as hold:
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        ticket = send_directly(producer, topic, hold.begin)

        def ask() -> None:
            with pytest.raises(SendFailed, match="forked"):
                ticket.result(20)

        child = multiprocessing.get_context("fork").Process(target=ask)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        hold.end()
        assert ticket.result(20).offset >= 0


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


class InterruptedLock:
    """A waiting thread's, at whose release a signal handler raises, once."""

    def __init__(self) -> None:
        self.is_told = False

    def locked(self) -> bool:
        return True

    def release(self) -> None:
        if not self.is_told:
            self.is_told = True
            raise Interrupted


def test_an_interrupted_reader_leaves_no_other_thread_waiting(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address) as producer, Hold(proxy) as hold:
        producer.send(topic, b"first", partition=0).result(20)
        send_directly(producer, topic).result(20)
        batch = send_directly(producer, topic, hold.begin).settlement
        # The send thread must not read the answer, and be interrupted: it does not take the sockets back, and the
        # reader does not leave them to it because it has its turn for long.
        monkeypatch.setattr(producer._sender.direct, "look", lambda now: None)
        monkeypatch.setattr(direct_way, "_A_MOMENT", ((True,), (20.0,)))
        producer._sender.call(lambda: None)  # no turn that has begun before looks any more
        lock, waited = InterruptedLock(), list[bool]()
        batch._waiting = [lock]  # type: ignore[list-item]
        other = threading.Thread(target=lambda: waited.append(Settlement.wait(batch, None)), daemon=True)
        other.start()
        while len(batch._waiting or ()) < 2:
            time.sleep(0.001)
        with pytest.raises(Interrupted), hold.until_a_caller_reads(producer):
            batch.wait(20)
        other.join(20)
        assert waited == [True]
        assert lock.is_told
        monkeypatch.undo()
        producer.flush(20)


# --- awaited ---


async def until_the_loop_reads(producer: AsyncProducer, topic: str) -> None:
    """Send records until the sockets are lent to the loop."""
    while not producer._its._sender.direct._is_lent:
        await producer.send(topic, b"before", partition=0)


async def send_for_the_loop(
    producer: AsyncProducer, topic: str, proxy: Proxy
) -> tuple[Hold, Ticket, asyncio.Task[None]]:
    """Send a record whose answer is held back, and have it awaited, so that the loop waits for the answer."""
    while True:
        await until_the_loop_reads(producer, topic)
        hold = Hold(proxy)
        with before_a_direct_write(hold.begin):
            ticket = producer.send(topic, b"v", partition=0)
        awaiting = asyncio.ensure_future(_wait_for(ticket))
        await asyncio.sleep(0)
        if went_directly(ticket) and producer._its._sender.direct.awaited is ticket.settlement:
            return hold, ticket, awaiting
        hold.end()  # the send thread has looked in between, and reads it
        await asyncio.wait_for(awaiting, 20)


async def test_awaited_records_arrive_in_order(server: TestedServer, client: RawClient, topic: str) -> None:
    sent = [b"%d" % number for number in range(300)]
    async with AsyncProducer(server.address) as producer:
        assert [(await producer.send(topic, value, partition=0)).offset for value in sent] == list(range(300))
    assert read_all(client, topic) == sent


async def test_a_loop_watches_the_sockets_from_one_record_to_the_next_and_no_longer(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, added = asyncio.get_running_loop(), list[int]()
    add_reader = loop.add_reader

    def add(file: int, *what: Any) -> None:
        added.append(file)
        add_reader(file, *what)

    async with AsyncProducer(server.address) as producer:
        await until_the_loop_reads(producer, topic)
        monkeypatch.setattr(loop, "add_reader", add)
        for _ in range(200):
            await producer.send(topic, b"v", partition=0)
        assert len(added) < 100
        lent = producer._its._sender.direct._network.lent
        assert lent is not None
        watch, until = producer._its._sender.direct._watch, time.monotonic() + 20
        assert watch is not None
        while watch._is_on:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        assert not loop.remove_reader(lent.fileno())
        assert (await producer.send(topic, b"after", partition=0)).offset >= 200


async def test_a_loop_that_is_kept_busy_does_not_keep_the_answer(server: TestedServer, topic: str) -> None:
    async with AsyncProducer(server.address) as producer:
        for _ in range(20):
            await until_the_loop_reads(producer, topic)
            ticket = producer.send(topic, b"v", partition=0)
            awaiting = asyncio.ensure_future(asyncio.wait_for(ticket, 20))
            await asyncio.sleep(0)  # now the loop is about to read
            until = time.monotonic() + 20
            while not ticket.settlement.settled:  # the loop does nothing else
                assert time.monotonic() < until
                time.sleep(0.001)
            await awaiting


async def test_a_cancelled_wait_leaves_the_loop_without_a_reader(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy:
        async with AsyncProducer(proxy.address) as producer:
            hold, ticket, awaiting = await send_for_the_loop(producer, topic, proxy)
            with hold:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(awaiting, 0.05)
                lent = producer._its._sender.direct._network.lent
                assert lent is not None
                assert not asyncio.get_running_loop().remove_reader(lent.fileno())
            assert (await ticket).offset >= 0
            for _ in range(50):
                await producer.send(topic, b"after", partition=0)


async def _wait_for(ticket: Ticket) -> None:
    await ticket


async def test_an_awaited_record_whose_answer_is_lost_is_sent_again(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    with Proxy(server.address) as proxy:
        async with AsyncProducer(proxy.address) as producer:
            for number in range(5):
                await until_the_loop_reads(producer, topic)
                proxy.next(Api.PRODUCE, Fate.CUT)
                await asyncio.wait_for(_wait_for(producer.send(topic, b"%d" % number, partition=0)), 20)
    assert [value for value in read_all(client, topic) if value != b"before"] == [b"%d" % number for number in range(5)]


def test_an_awaited_record_where_the_system_has_no_epoll(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[int]:
        async with AsyncProducer(server.address) as producer:
            return [(await producer.send(topic, b"v", partition=0)).offset for _ in range(50)]

    monkeypatch.setattr(selectors, "DefaultSelector", selectors.PollSelector)
    assert asyncio.run(main()) == list(range(50))


async def test_a_loop_that_cannot_read_does_not_try_again_and_again(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server.address) as proxy:
        async with AsyncProducer(proxy.address) as producer:
            direct, tries = producer._its._sender.direct, list[ProducerBatch]()
            readable, has_tried = direct._readable, asyncio.Event()

            def note(batch: ProducerBatch, *others: object) -> None:
                tries.append(batch)
                has_tried.set()
                readable(batch, *others)  # type: ignore[arg-type]

            monkeypatch.setattr(direct, "_readable", note)
            hold, ticket, awaiting = await send_for_the_loop(producer, topic, proxy)
            tries.clear()  # those of records before it
            has_tried.clear()
            with direct._turn:  # as while the send thread runs a callback of the user's
                hold.end()
                await asyncio.wait_for(has_tried.wait(), 20)
                await asyncio.sleep(0.1)  # many turns of the loop, if it tried in each
                assert tries == [ticket.settlement]
            await asyncio.wait_for(awaiting, 20)


def test_closing_leaves_the_loop_the_file_that_it_watches(server: TestedServer, topic: str) -> None:
    """Otherwise the next file of that number is watched in its place, and then no longer."""

    async def main() -> int:
        with Proxy(server.address) as proxy:
            async with AsyncProducer(proxy.address) as producer:
                direct = producer._its._sender.direct
                hold, _, awaiting = await send_for_the_loop(producer, topic, proxy)
                assert direct._network.lent is not None
                watched = direct._network.lent.fileno()
                close_at_once(producer._its)  # here, so that the loop does nothing meanwhile
                hold.end()
                opened = [os.dup(0) for _ in range(50)]
                for each in opened:
                    os.close(each)
                assert watched not in opened
                with pytest.raises(SendFailed):
                    await asyncio.wait_for(awaiting, 20)
                assert not asyncio.get_running_loop().remove_reader(watched)
                return watched

    watched = asyncio.run(main())
    gc.collect()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(watched)

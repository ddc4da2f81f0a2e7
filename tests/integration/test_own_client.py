"""Producers and readers that own what they write and read, on a real server (OWN-1 to OWN-9)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat

import pyarrow as pa
import pytest

import fencepost
from fencepost.errors import Closed, ErrorCode, Fenced, SendFailed, ServerError, TimedOut
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy
from tests.support.scripted.fates import Api, Fate

pytestmark = pytest.mark.integration

Make = Callable[..., fencepost.Producer]


@pytest.fixture
def producer(ours: TestedServer) -> Iterator[Make]:
    """Makes producers, and closes them whatever became of them."""
    made: list[fencepost.Producer] = []

    def make(**options: object) -> fencepost.Producer:
        made.append(fencepost.Producer(ours.address, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(fencepost.Fenced, fencepost.Undelivered):
            each.close()


@pytest.fixture
def guarded(ours: TestedServer, name: str) -> str:
    """A topic of one partition that only the owner of NAME-0 in group NAME writes."""
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 1, configs={"fencepost.writer.group": name})
    return name


def read(server: TestedServer, topic: str) -> list[str]:
    with fencepost.Reader(server.address, topic, stop="latest") as reader:
        return [(record.value or b"").decode() for record in reader]


def owners(server: TestedServer, group: str) -> dict[str, int]:
    """The generation of everything that is owned in the group."""
    with fencepost.Admin(server.address) as admin:
        return {owner.resource: owner.generation for owner in admin.owners(group).owners}


def is_waited_for(server: TestedServer, group: str) -> bool:
    with fencepost.Admin(server.address) as admin:
        return bool(admin.owners(group).waiting)


def severed(one: fencepost.Producer, topic: str) -> Fenced:
    """What a producer raises once it has heard of its end."""
    while True:
        ticket = None
        try:
            ticket = one.send(topic, "late", partition=0)
        except Fenced as fenced:
            return fenced
        ticket.exception(30)


def test_a_table_that_was_sent_half_when_its_owner_was_fenced_says_which_half(
    ours: TestedServer, producer: Make, guarded: str
) -> None:
    """PROD-8: `send_arrow` itself raises, because it waits for room."""
    table = pa.table({"value": [b"%05d" % row + b"x" * 1_000 for row in range(1_000)]})
    with Proxy(ours.address) as proxy, ThreadPoolExecutor(1) as pool:
        fates = chain([Fate.ANSWER] * 4, repeat(Fate.IGNORE))
        proxy.choose = lambda key: next(fates) if key == Api.PRODUCE else Fate.ANSWER
        first = fencepost.Producer(proxy.address, buffer_memory=1 << 18, batch_size=20_000)
        first.own(guarded, [f"{guarded}-0"], generation=1)
        first.send(guarded, b"known", partition=0).result(60)
        sending = pool.submit(first.send_arrow, guarded, table)
        while not first._sender.queues.in_a_hurry:  # it is blocked: the memory is full
            assert not sending.done()
            time.sleep(0.01)  # another thread's state: nothing to await
        producer().own(guarded, [f"{guarded}-0"], generation=1)
        error = sending.exception(60)
        first.close()
    assert isinstance(error, Fenced)
    assert error.persisted == "partly"
    assert error.rows is not None
    assert not error.rows.unknown
    (there,), (missing,) = error.rows.persisted, error.rows.missing
    assert (there.start, there.stop, missing.stop) == (0, missing.start, 1_000)
    assert [value[:5] for value in read(ours, guarded)[1:]] == [f"{row:05d}" for row in there]


# --- the rule ---


def test_only_the_owner_writes_a_guarded_topic_and_the_one_before_is_fenced(
    ours: TestedServer, producer: Make, guarded: str
) -> None:
    stranger, first, second = producer(), producer(), producer()
    refusal = stranger.send(guarded, "stranger", partition=0).exception(30)
    assert isinstance(refusal, SendFailed)
    assert (refusal.code, refusal.persisted) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")
    claim = first.own(guarded, [f"{guarded}-0"], generation=1)
    assert (claim.group, claim.generation) == (guarded, 1)
    first.send(guarded, "first", partition=0).result(30)
    over = second.own(guarded, [f"{guarded}-0"], generation=claim.generation)
    assert over.generation == 2
    assert over.token > claim.token
    second.send(guarded, "second", partition=0).result(30)
    severed(first, guarded)
    assert read(ours, guarded) == ["first", "second"]


def test_every_resource_has_its_own_generation(ours: TestedServer, producer: Make, name: str) -> None:
    """OWN-1, OWN-5, OWN-7."""
    producer().own(name, ["a"], generation=1)
    claim = producer().own(name, {"a": 5, "b": 1})
    assert claim.generations == {"a": 5, "b": 1} == owners(ours, name)
    with pytest.raises(fencepost.Refused) as caught:
        producer().own(name, {"a": 4, "b": 1})
    assert [row.name for row in caught.value.rows] == ["a"]
    again = producer().own(name, claim.generations, after=claim.tokens)
    assert again.generations == {"a": 6, "b": 2}


def test_a_claim_without_a_group_is_made_in_the_default_group(ours: TestedServer, producer: Make, name: str) -> None:
    """OWN-1: the group is optional."""
    assert producer().own(resources=[name], generation=1).group == "default"
    assert owners(ours, "default")[name] == 1
    with fencepost.hold(ours.address, None, {f"{name}-held": 7}) as held:
        assert (held.group, held.generations) == ("default", {f"{name}-held": 1})
    for term in fencepost.standby(ours.address, None, [f"{name}-standby"]):
        with term:
            assert (term.claim.group, term.generations) == ("default", {f"{name}-standby": 1})


def test_a_reader_claims_with_a_generation_per_partition(ours: TestedServer, producer: Make, name: str) -> None:
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 2)
    producer().own(name, {f"{name}-0": 1})
    with fencepost.Reader(ours.address, name) as reader:
        claim = reader.own(name, {f"{name}-0": 3, f"{name}-1": 9})
        assert claim.generations == {f"{name}-0": 3, f"{name}-1": 1}


async def test_an_async_claim_has_each_generation_and_token(ours: TestedServer, producer: Make, name: str) -> None:
    producer().own(name, ["a"], generation=1)
    async with fencepost.AsyncProducer(ours.address) as one, await one.own(name, {"a": 5, "b": 1}) as claim:
        assert claim.generations == {"a": 5, "b": 1}
        assert set(claim.tokens) == {"a", "b"}


def test_an_owner_that_sends_nothing_learns_that_it_was_replaced(producer: Make, name: str) -> None:
    """OWN-8: the server closes its connection, and nobody has to try."""
    told: queue.SimpleQueue[Fenced] = queue.SimpleQueue()
    one = producer()
    claim = one.own(name, ["a"], generation=1, session=60, on_lost=told.put)
    other = one.own(name, ["b"], generation=1)
    given_back = one.own(name, ["c"], generation=1)
    given_back.release()
    claim.check()
    producer().own(name, ["a"], generation=1)
    assert claim.lost.wait(60)
    assert other.lost.wait(60), "a severed connection owns nothing any more"
    assert not given_back.lost.is_set()
    assert "or it was silent for longer than its session of 60 s" in str(told.get(timeout=60))
    for check in (claim.check, other.check, one.check_owned):
        with pytest.raises(Fenced):
            check()
    with pytest.raises(Fenced):
        claim.release()
    assert told.empty(), "it is told once"


def test_a_callback_that_takes_its_time_does_not_hold_up_the_producer(producer: Make, name: str) -> None:
    may_end, ended = threading.Event(), threading.Event()

    def slowly(fenced: Fenced) -> None:
        assert may_end.wait(60)
        ended.set()

    one = producer()
    claim = one.own(name, ["a"], generation=1, on_lost=slowly)
    producer().own(name, ["a"], generation=1)
    assert claim.lost.wait(60)
    one.close()  # which waits for the send thread
    may_end.set()
    assert ended.wait(60)


def test_a_reader_that_is_not_read_from_looks_whether_it_was_replaced(
    ours: TestedServer, producer: Make, guarded: str
) -> None:
    told: queue.SimpleQueue[Fenced] = queue.SimpleQueue()
    with fencepost.Reader(ours.address, guarded) as reader:
        reader.check_owned()
        claim = reader.own(guarded, generation=1, on_lost=told.put)
        reader.check_owned()
        producer().own(guarded, [f"{guarded}-0"], generation=1)
        while not claim.lost.is_set():
            with contextlib.suppress(Fenced):
                reader.check_owned()
        with pytest.raises(Fenced):
            reader.check_owned()
        assert told.get(timeout=60) is reader._loss.cause


async def test_an_async_owner_learns_in_its_loop_that_it_was_replaced(
    ours: TestedServer, producer: Make, name: str
) -> None:
    told: asyncio.Queue[Fenced] = asyncio.Queue()
    async with fencepost.AsyncProducer(ours.address) as one:
        claim = await one.own(name, ["a"], generation=1, on_lost=told.put_nowait)
        one.check_owned()
        await asyncio.to_thread(producer().own, name, ["a"], generation=1)
        await claim.lost.wait()
        assert isinstance(await told.get(), Fenced)
        for check in (claim.check, one.check_owned):
            with pytest.raises(Fenced):
                check()


def test_a_standby_that_works_without_sending_sees_that_its_term_is_over(
    ours: TestedServer, producer: Make, name: str
) -> None:
    terms = 0
    for term in fencepost.standby(ours.address, name, ["a"]):
        with term:
            terms += 1
            if terms == 1:
                with producer() as other:
                    other.own(name, ["a"], generation=term.generation)
                    assert term.lost.wait(60)
                    term.check()
    assert terms == 2


# --- waiting, giving back, sessions ---


def test_a_block_gives_back_when_everything_in_it_is_settled(ours: TestedServer, producer: Make, guarded: str) -> None:
    one = producer(linger=5.0)
    with one.own(guarded, [f"{guarded}-0"], generation=1):
        ticket = one.send(guarded, "in time", partition=0)
    assert ticket.done()
    assert ticket.exception(0) is None
    assert owners(ours, guarded) == {}
    too_late = one.send(guarded, "too late", partition=0)
    with pytest.raises(SendFailed):
        too_late.result(30)
    assert read(ours, guarded) == ["in time"]


def test_records_sent_before_the_claim_are_settled_before_it(ours: TestedServer, producer: Make, guarded: str) -> None:
    one = producer(linger=5.0)
    before = one.send(guarded, "before", partition=0)
    one.own(guarded, [f"{guarded}-0"], generation=1)
    assert before.done()
    refusal = before.exception(0)
    assert refusal is not None
    assert refusal.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_an_idle_owner_keeps_its_session(producer: Make, name: str) -> None:
    one = producer()
    one.own(name, ["a"], generation=1, session=2.0)
    with pytest.raises(TimedOut):
        producer().own(name, ["a"], wait=4.5)
    one.check_owned()


# --- fork ---


@contextmanager
def forked(says: Callable[[], bytes]) -> Iterator[bytes]:
    """A child that lives until the block ends, and what it says; nothing of pytest may run in it."""
    told, tell = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, says())
        finally:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
    os.close(wait)
    os.close(tell)
    try:
        yield os.read(told, 100)
    finally:
        os.close(go)
        os.waitpid(child, 0)
        os.close(told)


def test_what_is_owned_stays_with_the_parent_and_does_not_outlive_it_in_a_child(producer: Make, name: str) -> None:
    one = producer()
    one.own(name, ["a"], generation=1)

    def says() -> bytes:
        try:
            one.send(name, "v")
        except Closed as closed:
            return b"refused" if "forked" in str(closed) else b"otherwise"
        return b"sent"

    with forked(says) as said:
        assert said == b"refused"
        one.check_owned()
        one.close()  # and the child lives on
        assert producer().own(name, ["a"], wait=30).generation == 1


def test_what_a_reader_owns_and_what_is_held_do_not_outlive_the_parent_in_a_child(
    ours: TestedServer, producer: Make, name: str
) -> None:
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 1)
    reader = fencepost.Reader(ours.address, name)
    reader.own(name, ["a"], generation=1)
    held = fencepost.hold(ours.address, name, ["b"], generation=1)

    def says() -> bytes:
        try:
            reader.poll(1)
        except Closed:
            return b"lost" if held.lost.is_set() else b"held"
        return b"read"

    with forked(says) as said:
        assert said == b"lost"
        held.check()
        reader.close()
        held.close()
        assert producer().own(name, ["a", "b"], wait=30).generation == 1


# --- transactions ---


def test_an_owner_writes_in_transactions(ours: TestedServer, producer: Make, guarded: str) -> None:
    one = producer(name=guarded)
    with one.transaction():
        pass
    with one.own(guarded, [f"{guarded}-0"], generation=1):
        for number in range(3):
            with one.transaction():
                one.send(guarded, str(number), partition=0)
    assert read(ours, guarded) == ["0", "1", "2"]
    with one.transaction():
        pass


def test_the_open_transaction_of_a_fenced_owner_is_aborted(ours: TestedServer, producer: Make, guarded: str) -> None:
    """OWN-9."""
    first, second = producer(name=f"{guarded}-1"), producer(name=f"{guarded}-2")
    claim = first.own(guarded, [f"{guarded}-0"], generation=1)
    transaction = first.transaction()
    transaction.__enter__()
    first.send(guarded, "never", partition=0).result(30)
    second.own(guarded, [f"{guarded}-0"], generation=claim.generation)
    with second.transaction():
        second.send(guarded, "second", partition=0)
    with pytest.raises(Fenced):
        transaction.commit()
    assert read(ours, guarded) == ["second"]


def test_the_open_transaction_of_an_owner_that_hung_up_is_aborted_for_its_successor(
    ours: TestedServer, producer: Make, guarded: str
) -> None:
    """OWN-8 and OWN-9: however the owner before went, readers are not held up by what it left open."""
    first, second = producer(name=f"{guarded}-1"), producer()
    first.own(guarded, [f"{guarded}-0"], generation=1)
    first.transaction().__enter__()
    first.send(guarded, "never", partition=0).result(30)
    connection = first._sender.owner.connection
    assert connection is not None
    first._sender.call(lambda: connection.close(ServerError(ErrorCode.NETWORK_EXCEPTION, "cut by the test")))
    second.own(guarded, [f"{guarded}-0"], wait=30)
    second.send(guarded, "second", partition=0).result(30)
    assert read(ours, guarded) == ["second"]


def test_who_gives_back_inside_a_transaction_cannot_commit_it(ours: TestedServer, producer: Make, guarded: str) -> None:
    """OWN-9: its records would appear among those of the next owner."""
    first, second = producer(name=f"{guarded}-1"), producer()
    claim = first.own(guarded, [f"{guarded}-0"], generation=1)
    transaction = first.transaction()
    transaction.__enter__()
    first.send(guarded, "never", partition=0)
    claim.release()
    second.own(guarded, [f"{guarded}-0"], generation=1)
    second.send(guarded, "second", partition=0).result(30)
    assert read(ours, guarded) == ["second"]
    with pytest.raises(Fenced):
        transaction.commit()
    assert read(ours, guarded) == ["second"]


# --- readers ---


def guard_reading(server: TestedServer, topic: str) -> None:
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(topic, 1, configs={"fencepost.reader.group": topic})
    with fencepost.Producer(server.address) as writer:
        for number in range(100):
            writer.send(topic, str(number), partition=0)


def read_on(reader: fencepost.Reader) -> None:
    while True:
        reader.poll(30)


def test_a_guarded_topic_is_read_by_its_owner_and_the_one_before_is_fenced(ours: TestedServer, name: str) -> None:
    guard_reading(ours, name)
    at = TopicPartition(name, 0)
    with ExitStack() as stack:
        stranger, first, second = (
            stack.enter_context(fencepost.Reader(ours.address, (name, 0), group=name, start="committed"))
            for _ in range(3)
        )
        with pytest.raises(ServerError, match="TOPIC_AUTHORIZATION_FAILED"):
            next(iter(stranger))
        with pytest.raises(ServerError, match="TOPIC_AUTHORIZATION_FAILED"):
            stranger.commit({at: 1})
        claim = first.own(name, generation=1)
        assert list(claim.rows) == [f"{name}-0"]
        read = [next(iter(first)).value for _ in range(10)]
        assert read == [str(number).encode() for number in range(10)]
        first.commit()
        second.own(name, generation=claim.generation)
        assert next(iter(second)).value == b"10"  # where the one before left off, although it was made before that
        with pytest.raises(Fenced):
            first.commit({at: 99})
        with pytest.raises(Fenced):
            read_on(first)
        second.commit()
        assert second.positions[at] == 11


def test_a_reader_waits_for_its_turn_and_gives_back(ours: TestedServer, name: str) -> None:
    guard_reading(ours, name)
    with (
        fencepost.Reader(ours.address, (name, 0), group=name, start="committed", stop="latest") as first,
        fencepost.Reader(ours.address, (name, 0), group=name, start="committed", stop="latest") as second,
    ):
        with first.own(name, generation=1, session=60.0):
            with pytest.raises(TimedOut):
                second.own(name, wait=0.1)
            assert len(list(first)) == 100
            first.commit()
        second.own(name, wait=30)
        assert list(second) == []


# --- asyncio ---


async def test_an_asynchronous_producer_owns(ours: TestedServer, guarded: str) -> None:
    resource = f"{guarded}-0"
    async with fencepost.AsyncProducer(ours.address) as one, fencepost.AsyncProducer(ours.address) as other:
        async with await one.own(guarded, [resource], generation=1) as claim:
            assert claim.generation == 1
            await one.send(guarded, "one", partition=0)
            waiting = asyncio.ensure_future(other.own(guarded, [resource], wait=True))
            while not await asyncio.to_thread(is_waited_for, ours, guarded):
                pass
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        again = await other.own(guarded, [resource], wait=30)
        assert again.generation == 1
        await other.send(guarded, "other", partition=0)
        await again.release()
    assert read(ours, guarded) == ["one", "other"]


async def test_a_task_cancelled_while_it_owns_gives_back(ours: TestedServer, name: str) -> None:
    async with fencepost.AsyncProducer(ours.address) as one:
        owns = asyncio.Event()

        async def work() -> None:
            async with await one.own(name, ["a"], generation=1):
                owns.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await owns.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(owners, ours, name) == {}


async def test_an_asynchronous_reader_owns(ours: TestedServer, name: str) -> None:
    guard_reading(ours, name)
    async with fencepost.AsyncReader(ours.address, (name, 0), group=name, stop="latest") as reader:
        async with await reader.own(name, generation=1):
            assert len([record async for record in reader]) == 100
            await reader.commit()
        assert owners(ours, name) == {}


# --- standby ---


def test_a_standby_works_in_terms_and_takes_over_in_turn(ours: TestedServer, producer: Make, guarded: str) -> None:
    resource = f"{guarded}-0"
    terms: list[tuple[str, int]] = []
    active = threading.Semaphore(0)

    def work(who: str) -> None:
        for term in fencepost.standby(ours.address, guarded, [resource], session=60.0):
            with term as writer:
                writer.send(guarded, f"{who} {term.token}", partition=0)
                writer.flush()
                terms.append((who, term.token))
                active.release()
                if len(terms) < 3:
                    while True:  # until somebody takes over
                        writer.send(guarded, f"{who} {term.token}", partition=0).result(30)

    workers = [threading.Thread(target=work, args=(who,)) for who in ("a", "b")]
    for worker in workers:
        worker.start()
    for generation in (1, 1):
        assert active.acquire(timeout=30)
        rude = producer()
        with rude.own(guarded, [resource], generation=generation):
            pass  # severs whoever is active, and leaves
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert len(terms) == 4  # two that were fenced, and one for each that came to its end
    assert [token for _, token in terms] == sorted(token for _, token in terms)
    written = read(ours, guarded)
    tokens = [int(value.split()[1]) for value in written]
    assert tokens == sorted(tokens)
    assert set(tokens) == {token for _, token in terms}


def test_a_standby_returns_what_its_body_returned(ours: TestedServer, name: str) -> None:
    tokens: list[int] = []

    def body(term: fencepost.Term) -> str:
        tokens.append(term.token)
        if len(tokens) == 1:
            with fencepost.Producer(ours.address) as rude:
                rude.own(name, ["a"], generation=term.generation)
                while True:
                    term.check()
        return "done"

    assert fencepost.standby(ours.address, name, ["a"]).run(body) == "done"
    assert len(tokens) == 2
    assert owners(ours, name) == {}


def test_an_error_of_the_body_is_raised_and_gives_back(ours: TestedServer, name: str) -> None:
    with pytest.raises(KeyError):  # noqa: PT012 - the loop is what is tested
        for term in fencepost.standby(ours.address, name, ["a"]):
            with term:
                raise KeyError("body")
    assert owners(ours, name) == {}


def test_a_loop_that_is_left_gives_back(ours: TestedServer, name: str) -> None:
    for term in fencepost.standby(ours.address, name, ["a"]):
        with term:
            break
    assert owners(ours, name) == {}


def test_a_standby_that_waits_can_be_stopped(ours: TestedServer, producer: Make, name: str) -> None:
    producer().own(name, ["a"], generation=1)
    standby = fencepost.standby(ours.address, name, ["a"])
    terms: list[fencepost.Term] = []
    waiting = threading.Thread(target=lambda: terms.extend(standby))
    waiting.start()
    while not is_waited_for(ours, name):
        pass
    standby.stop()
    waiting.join(30)
    assert not waiting.is_alive()
    assert terms == []

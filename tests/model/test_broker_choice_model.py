"""Who is asked what any broker can answer, against simulated brokers: some quick, some loaded, some that hang.

The model knows when each broker would answer and simply plays the question through. Whatever the brokers are like, the
question is answered as long as one of them answers, soon, and no broker is bothered needlessly (PROD-6, PROD-7).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.broker_choice import HEDGE_AFTER, Hedge, Load, by_load

pytestmark = pytest.mark.model

NEVER = float("inf")


@dataclass(frozen=True)
class Broker:
    answers_after: float
    """Seconds from the question to its answer; NEVER: it hangs."""
    fails_after: float
    """Seconds from the question to the end of the connection."""
    load: Load


times = st.one_of(st.just(NEVER), st.floats(0.001, 5.0))
loads = st.builds(Load, st.integers(0, 3), st.one_of(st.none(), st.floats(-10.0, 0.0)))
brokers = st.lists(st.builds(Broker, times, times, loads), min_size=1, max_size=5)


@dataclass
class Played:
    answered_at: float
    asked: list[tuple[float, int]]
    """When, and which broker."""


def play(cluster: list[Broker]) -> Played:
    """One question, each broker asked once at most, until it is answered or nobody is left."""
    now = 0.0
    hedge: Hedge[int] = Hedge(now)
    played = Played(NEVER, [])
    left = {number: broker.load for number, broker in enumerate(cluster)}
    events: list[tuple[float, bool, int]] = []
    while True:
        chosen = hedge.choose(left, now)
        if chosen is not None:
            del left[chosen]
            hedge.asked(chosen, now)
            played.asked.append((now, chosen))
            broker = cluster[chosen]
            is_answer = broker.answers_after <= broker.fails_after
            events.append((now + min(broker.answers_after, broker.fails_after), is_answer, chosen))
            events.sort()
        if not hedge.is_waiting and not left:
            return played
        due = hedge.next_at if left else NEVER
        if events and events[0][0] <= due:
            now, is_answer, number = events.pop(0)
            if now == NEVER:
                return played
            if is_answer:
                played.answered_at = now
                return played
            hedge.failed(number, now)
        else:
            now = due


@given(brokers)
def test_a_question_is_answered_soon_if_any_broker_answers(cluster: list[Broker]) -> None:
    played = play(cluster)
    sound = [broker.answers_after for broker in cluster if broker.answers_after <= broker.fails_after]
    if min(sound, default=NEVER) == NEVER:
        assert played.answered_at == NEVER
        return
    # At worst all the others are asked before the one that answers, each after twice the pause of the one before.
    pauses = HEDGE_AFTER * (2 ** (len(cluster) - 1) - 1)
    assert played.answered_at <= pauses + min(sound)


@given(brokers)
def test_no_second_broker_is_asked_while_the_first_is_quick(cluster: list[Broker]) -> None:
    played = play(cluster)
    assert len({number for _, number in played.asked}) == len(played.asked)
    (began, first), *others = played.asked
    assert began == 0.0
    if others:
        broker = cluster[first]
        assert others[0][0] >= min(HEDGE_AFTER, broker.fails_after)
        assert broker.answers_after >= min(HEDGE_AFTER, broker.fails_after)


@given(st.dictionaries(st.integers(), loads, min_size=1), st.floats(0.0, 10.0))
def test_the_first_choice_is_silent_only_if_all_are_and_the_least_loaded(brokers: dict[int, Load], now: float) -> None:
    order = by_load(brokers, now)
    assert sorted(order) == sorted(brokers)
    first, speaking = brokers[order[0]], [load for load in brokers.values() if not load.is_silent(now)]
    assert first.is_silent(now) == (not speaking)
    assert first.in_flight == min(load.in_flight for load in speaking or brokers.values())


def test_equally_loaded_brokers_keep_their_order() -> None:
    assert by_load({"c": Load(), "a": Load(), "b": Load()}, 0.0) == ["c", "a", "b"]


def test_a_broker_that_failed_may_be_asked_again_while_another_one_hangs() -> None:
    hedge: Hedge[str] = Hedge(0.0)
    hedge.asked("hangs", 0.0)
    assert hedge.choose({"hangs": Load(1, 0.0), "restarts": Load()}, 0.1) is None
    assert hedge.choose({"hangs": Load(1, 0.0), "restarts": Load()}, HEDGE_AFTER) == "restarts"
    hedge.asked("restarts", HEDGE_AFTER)
    hedge.failed("restarts", 1.0)
    assert hedge.is_waiting
    assert hedge.choose({"hangs": Load(1, 0.0), "restarts": Load()}, 1.0) == "restarts"

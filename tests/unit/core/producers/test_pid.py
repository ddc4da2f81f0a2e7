"""How a producer comes by its pid, and what follows an epoch."""

from __future__ import annotations

import pytest

from fencepost.core.producers.pid import LAST_EPOCH, Identity, PidState, ProducerIdentity
from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Pid

pytestmark = pytest.mark.unit


def ready(pid: int = 7, epoch: int = 0, *, named: bool = False) -> ProducerIdentity:
    identity = ProducerIdentity(named=named)
    identity.asked()
    identity.given(Pid(pid), Epoch(epoch))
    return identity


def test_a_new_producer_asks_once_and_is_ready_when_answered() -> None:
    identity = ProducerIdentity()
    assert identity.wants_to_ask(0.0)
    identity.asked()
    assert not identity.wants_to_ask(0.0)
    assert identity.given(Pid(7), Epoch(0)) == Identity(Pid(7), Epoch(0))
    assert identity.state is PidState.READY
    assert not identity.wants_to_ask(0.0)


def test_a_lost_answer_is_asked_for_again_after_the_backoff() -> None:
    identity = ProducerIdentity()
    identity.asked()
    identity.answer_lost(10.0, 0.1)
    assert not identity.wants_to_ask(10.05)
    assert identity.wants_to_ask(10.1)
    assert identity.ask_at == pytest.approx(10.1)


def test_a_coordinator_that_is_loading_is_asked_again_but_a_refusal_is_final() -> None:
    identity = ProducerIdentity()
    identity.asked()
    identity.refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0.0, 0.1)
    assert identity.wants_to_ask(0.1)
    identity.asked()
    identity.refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 0.2, 0.1)
    assert identity.state is PidState.FINISHED
    assert identity.reason is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not identity.wants_to_ask(1e9)


def test_without_a_name_the_next_epoch_needs_no_question() -> None:
    identity = ready(7, 0)
    assert identity.successor(Identity(Pid(7), Epoch(3))) == (7, 4)
    assert identity.state is PidState.READY


def test_after_the_last_epoch_a_new_pid_is_asked_for() -> None:
    identity = ready(7, 0)
    exhausted = Identity(Pid(7), LAST_EPOCH)
    assert identity.successor(exhausted) is None
    assert identity.wants_to_ask(0.0)
    identity.asked()
    identity.given(Pid(8), Epoch(0))
    assert identity.successor(exhausted) == (8, 0)
    # Another partition that ran out later takes the pid that is already there.
    assert identity.successor(exhausted) == (8, 0)
    assert identity.state is PidState.READY


def test_with_a_name_only_the_server_bumps() -> None:
    identity = ready(7, 3, named=True)
    assert identity.successor(Identity(Pid(7), Epoch(3))) is None
    assert identity.wants_to_ask(0.0)
    identity.asked()
    identity.given(Pid(7), Epoch(4))
    assert identity.successor(Identity(Pid(7), Epoch(3))) == (7, 4)


def test_who_is_fenced_gets_no_successor() -> None:
    identity = ready(7, 3, named=True)
    identity.finished(ErrorCode.PRODUCER_FENCED)
    assert identity.successor(Identity(Pid(7), Epoch(3))) is None
    assert not identity.wants_to_ask(0.0)

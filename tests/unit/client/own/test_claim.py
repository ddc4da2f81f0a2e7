"""A claim as its owner sees it, whichever backend granted it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import pytest

from fencepost.client.own.claim import Claim, Loss, claim_by
from fencepost.clock import SystemClock
from fencepost.core.own.claim_request import ClaimRequest, check_claim
from fencepost.core.own.lease import Lease
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced
from fencepost.types import Generation

pytestmark = pytest.mark.unit


class PlainBackend:
    def __init__(self) -> None:
        self.released: list[tuple[str, list[str]]] = []
        self.is_lost = False

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        return [OwnedResource(name, Generation(7), 40 + number) for number, name in enumerate(request.resources)]

    def release(self, group: str, names: Sequence[str]) -> None:
        if self.is_lost:
            raise Fenced("somebody else owns it", persisted="no")
        self.released.append((group, list(names)))

    def interrupt(self) -> None:
        raise AssertionError("nothing waits here")

    def close(self) -> None:
        raise AssertionError("nothing is closed here")

    def forget(self) -> None:
        raise AssertionError("nothing is closed here")


def claimed(backend: PlainBackend) -> Claim:
    return claim_by(backend, check_claim("g", ["a", "b"], generation=1))


def test_a_claim_says_what_was_granted() -> None:
    claim = claimed(PlainBackend())
    assert (claim.group, claim.generation, claim.token) == ("g", 7, 40)
    assert claim.rows["b"] == OwnedResource("b", Generation(7), 41)


def test_a_claim_is_released_once_at_the_end_of_its_block() -> None:
    backend = PlainBackend()
    with claimed(backend) as claim:
        pass
    claim.release()
    assert backend.released == [("g", ["a", "b"])]


def test_a_claim_is_released_when_its_block_fails() -> None:
    backend = PlainBackend()
    with pytest.raises(KeyError), claimed(backend):
        raise KeyError("body")
    assert backend.released == [("g", ["a", "b"])]


def test_a_block_that_was_fenced_without_noticing_is_told_at_its_end() -> None:
    backend = PlainBackend()
    with pytest.raises(Fenced), claimed(backend):
        backend.is_lost = True


def test_the_error_of_the_block_goes_before_the_loss_of_the_claim() -> None:
    backend = PlainBackend()
    claim = claimed(backend)
    backend.is_lost = True
    with pytest.raises(KeyError) as caught, claim:
        raise KeyError("body")
    assert "Fenced" in caught.value.__notes__[0]


def test_an_interrupted_block_waits_for_nothing() -> None:
    backend = PlainBackend()
    with pytest.raises(KeyboardInterrupt), claimed(backend):
        raise KeyboardInterrupt
    assert backend.released == []


class StoppedOnce(SystemClock):
    """The clock of a process that is stopped for a minute after its first look."""

    def __init__(self) -> None:
        self._moments = chain([0.0], repeat(60.0))

    def monotonic(self) -> float:
        return next(self._moments)


def test_a_wait_that_ends_behind_the_lease_says_lost_although_no_thread_has_noticed() -> None:
    lease = Lease()
    lease.grant(0.0, session=2.0)
    claim = claim_by(PlainBackend(), check_claim("g", ["a"], generation=1), Loss(lease, StoppedOnce()))
    assert claim.lost.wait(0.01)
    with pytest.raises(Fenced, match="the lease is over"):
        claim.check()

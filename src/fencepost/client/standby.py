"""Active and standby in one loop: wait until the resources are free, work while they are owned, wait again when fenced.

    for term in fencepost.standby("127.0.0.1:9092", "orders-writers", ["orders-0"], session=5):
        with term as producer:
            recover(term.token)
            for change in changes():
                producer.send("orders", change, partition=0)

Each turn of the loop is a term with a producer of its own, because a fenced producer cannot be used again. `with term`
swallows the `Fenced` of that term, and the loop waits for the next. A block that ends normally has done its work: its
records are settled, the resources are released, and the loop ends. Any other exception releases them, too.

The same with a function; `run` returns its result:

    fencepost.standby(servers, group, resources).run(lambda term: relay(term.producer))

Every standby waits in line with a claim, so they take over in the order of their arrival. The session limits how long
they wait for a dead owner: one that is silent for longer, because its host is gone or its process stopped, is fenced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.checks import check_known
from fencepost.client.cluster.patience import LONGEST_PAUSE, Backoff
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.claim import Claim, OwnedRows
from fencepost.client.producer import Producer, ProducerKeywords
from fencepost.core.own.claim_request import check_claim
from fencepost.errors import Closed, Fenced, FencepostError, TimedOut, Undelivered, Unreachable

log = logging.getLogger("fencepost.standby")

T = TypeVar("T")


class Term(OwnedRows):
    """One period of ownership, from the grant until the body ends or somebody takes over."""

    def __init__(self, producer: Producer, claim: Claim) -> None:
        self.producer = producer
        self.claim = claim
        self.rows = claim.rows
        self.lost = claim.lost
        """Set as soon as somebody has taken over, even while nothing is sent."""
        self.was_fenced = False
        """Set when its block has ended."""
        self._is_over = False

    def check(self) -> None:
        """Raise Fenced if somebody has taken over. For a body that works for long between two sends."""
        self.producer.check_owned()

    def __enter__(self) -> Producer:
        return self.producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Return True, which swallows the exception, if it was the fence of this term."""
        self._is_over = True
        fenced = self._end(error)
        if error is None or _is_fence(error):
            self.was_fenced = fenced
        return error is not None and self.was_fenced

    def _end(self, error: BaseException | None) -> bool:
        """Settle and release; return whether the term was fenced. Another failure is raised, or noted on `error`."""
        try:
            if error is None or isinstance(error, Exception):
                self.claim.release()
        except Fenced:
            return True
        except FencepostError as wrong:
            if error is not None:
                error.add_note(f"{type(wrong).__name__}: {wrong}")
                return False
            raise
        finally:
            self._close(error)
        return False

    def _close(self, error: BaseException | None) -> None:
        try:
            self.producer.close(timeout=None if error is None or isinstance(error, Exception) else 0)
        except (Fenced, Undelivered) as undelivered:
            if not _is_fence(undelivered):
                if error is None:
                    raise
                error.add_note(str(undelivered))

    def leave(self) -> None:
        """End a term whose block was never entered."""
        if not self._is_over:
            self._is_over = True
            self._end(None)


def _is_fence(error: BaseException) -> bool:
    """Return whether the error is a fence, also as `flush` reports it for unobserved records."""
    if isinstance(error, Undelivered):
        return all(isinstance(cause, Fenced) for cause in error.causes)
    return isinstance(error, Fenced)


class Standby:
    """A loop of terms; `standby` creates it."""

    def __init__(
        self,
        servers: Servers | ClientSettings,
        group: str | None,
        resources: Sequence[str],
        session: float,
        options: ProducerKeywords,
    ) -> None:
        check_known("standby", options, [*ProducerKeywords.__annotations__, "session"])
        check_claim(group, resources, wait=True, session=session)  # raise for a mistake now, and not in the loop
        self._settings = ClientSettings.of(servers)
        self._group = group
        self._resources = list(resources)
        self._session = session
        self._options = options
        self._stopped = threading.Event()
        self._waiting: Producer | None = None

    @staticmethod
    def from_config(
        config: Mapping[str, object],
        group: str | None,
        resources: Sequence[str],
        *,
        session: float = 10.0,
        **options: Unpack[ProducerKeywords],
    ) -> Standby:
        """Create one as `standby`, with librdkafka's or Java's names, as `Producer.from_config` takes them."""
        from fencepost.client.cluster.config_names import producer_fields  # slow to load, and rarely needed

        settings, named = producer_fields(config)
        return standby(ClientSettings(**settings), group, resources, session=session, **{**named, **options})

    def __iter__(self) -> Iterator[Term]:
        while (term := self._next_term()) is not None:
            try:
                yield term
            finally:
                term.leave()
            if not term.was_fenced:
                return
            log.info("somebody else took over %s; waiting until it is free", ", ".join(self._resources))

    def run(self, body: Callable[[Term], T]) -> T:
        """Call `body` with every term until one ends without being fenced, and return its result."""
        for term in self:
            with term:
                result = body(term)
            if not term.was_fenced:
                return result
        raise Closed("the standby was stopped")

    def stop(self) -> None:
        """End the loop instead of waiting. A term that has begun goes on to its end. For other threads."""
        self._stopped.set()
        producer = self._waiting
        if producer is not None:
            producer.interrupt()

    def _next_term(self) -> Term | None:
        pauses = Backoff(self._settings.retry_backoff, LONGEST_PAUSE, sleep=self._stopped.wait)
        while not self._stopped.is_set():
            producer = Producer(self._settings, **self._options)
            self._waiting = producer
            try:
                claim = producer.own(self._group, self._resources, wait=True, session=self._session)
            except (Unreachable, TimedOut, Closed) as error:
                producer.close(0)
                if not self._stopped.is_set():
                    log.info("waiting for %s: %s", ", ".join(self._resources), error)
                pauses.wait()
            except BaseException:
                producer.close(0)
                raise
            else:
                return Term(producer, claim)
            finally:
                self._waiting = None
        return None


def standby(
    servers: Servers | ClientSettings,
    group: str | None,
    resources: Sequence[str],
    *,
    session: float = 10.0,
    **options: Unpack[ProducerKeywords],
) -> Standby:
    """Return a loop of terms that own `resources` in `group`: `for term in standby(…): with term as producer: …`.

    `group`: None means the group `default`. `session`: seconds of silence after which an owner is replaced. `options`
    are the producer's. `Standby.from_config` takes a dict with the names of librdkafka and Java.
    """
    return Standby(servers, group, resources, session, options)

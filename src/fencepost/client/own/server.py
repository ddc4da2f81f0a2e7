"""`own` on fencepost's server: a claim belongs to the connection that carries the data (OWN-9).

A producer's send thread sends its claims, a reader's caller those of the reader; both wait here for the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import Reply
from fencepost.client.cluster.handshake import Versions
from fencepost.client.cluster.interrupts import Outcome
from fencepost.client.cluster.owner_connection import PendingClaim
from fencepost.client.cluster.routing import Channel, Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.sender import Sender
from fencepost.client.read.fetcher import Fetcher
from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import FencepostError, TimedOut, Unreachable


class ServerProducerBackend:
    """Claims of a producer, over its send thread's connection."""

    def __init__(
        self, sender: Sender, settings: ClientSettings, patience: float, steps: Transactional | None, routes: Routes
    ) -> None:
        self._sender = sender
        self._patience = patience
        self._steps = steps
        self._routes = routes
        self._shared = SharedRoutes(settings, sender)

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        sender = self._sender
        sender.flush()  # order between records and claims is simple: everything before is answered before
        if self._steps is not None:
            sender.wait_for_identity(self._patience)
        rows = self._outcome(sender.post_claim(request))
        if self._steps is not None and self._steps.routes is not self._shared:
            # The name moves to the owner's connection, so that its transactions end with that connection.
            self._steps.go_by(self._shared)
            sender.call(sender.state.renew_identity)
            sender.wait_for_identity(self._patience)
        return rows

    def release(self, group: str, names: Sequence[str]) -> None:
        sender = self._sender
        sender.flush()
        self._outcome(sender.call(lambda: sender.owner.release(group, names)))
        if self._steps is not None and not sender.is_owner:
            self._steps.go_by(self._routes)

    def interrupt(self) -> None:
        self._sender.call(self._sender.owner.give_up_waiting)

    def close(self) -> None:
        """Do nothing: the ownership ends with the connection."""

    def forget(self) -> None:
        """Do nothing: only the connection is left."""

    def _outcome(self, pending: PendingClaim) -> list[OwnedResource]:
        sender = self._sender
        try:
            return pending.outcome.result(self._patience + pending.wait)
        except TimeoutError:
            sender.call(lambda: sender.owner.give_up(pending))
            raise TimedOut(f"no answer to the claim within {self._patience:g} s{sender.trouble()}") from None
        except FencepostError:
            raise
        except BaseException:  # Ctrl-C while waiting
            sender.call(lambda: sender.owner.give_up(pending))
            raise


class ServerReaderBackend:
    """Claims of a reader, over its fetching connection; the reader's caller drives the loop meanwhile."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        return self._outcome(self._fetcher.with_turn(lambda: self._fetcher.owner.claim(request)))

    def release(self, group: str, names: Sequence[str]) -> None:
        self._outcome(self._fetcher.with_turn(lambda: self._fetcher.owner.release(group, names)))

    def interrupt(self) -> None:
        self._fetcher.call_soon(self._fetcher.owner.give_up_waiting)

    def close(self) -> None:
        """Do nothing: the ownership ends with the connection."""

    def forget(self) -> None:
        """Do nothing: only the connection is left."""

    def _outcome(self, pending: PendingClaim) -> list[OwnedResource]:
        try:
            self._fetcher.run_until(pending.outcome, pending.wait)
        except BaseException:
            self._fetcher.owner.give_up(pending)
            raise
        return pending.outcome.result()


@dataclass(frozen=True, slots=True)
class SharedChannel(Channel):
    """Blocking requests of other threads over an owner's connection.

    The steps of a transaction (`client/transactions/coordinator.py`) send one request at a time and normally have their
    own channels. For an owner the connection matters: only the owner's connection may add a partition of a guarded
    topic to a transaction, and a transaction ends with its owner only if it came over the owner's connection (OWN-9).
    """

    sender: Sender

    def request(self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, longer: float = 0.0) -> Reply:
        outcome: Outcome[Reply] = Outcome()

        def ask() -> None:
            connection = self.sender.owner.ready()
            version = connection.version(key, at_most)

            def answered(answer: Any) -> None:
                outcome.set_result(Reply(version, answer, connection.address))

            def lost(error: FencepostError, left: bool) -> None:
                outcome.set_exception(Unreachable(str(error)))

            connection.ask(key, fields, answered, lost, at_most=at_most)

        self.sender.call(ask)
        return outcome.result()

    def versions(self) -> Versions:
        return self.sender.call(lambda: self.sender.owner.ready().versions)


class SharedRoutes(Routes):
    """Routes that all lead to the server of the owner's connection."""

    def __init__(self, settings: ClientSettings, sender: Sender) -> None:
        super().__init__(settings)
        self._shared = SharedChannel(self, settings.servers[0], sender)

    def channel(self, address: Address) -> Channel:
        return self._shared

    def any(self) -> Channel:
        return self._shared

    def ask(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, first: Iterable[Address] = ()
    ) -> Reply:
        return self._shared.request(key, fields, at_most=at_most)

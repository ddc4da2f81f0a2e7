"""Holding something on Apache Kafka: a claim whose write id nobody writes under, and a session.

The session's thread asks, with every sign of life, whether the write id was fenced: that is how the holder learns of a
take-over. The token is for other systems, as on fencepost's server.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fencepost.client.cluster.forking import tell_after_fork
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.hold import Hold
from fencepost.client.own.kafka import WAITING_SESSION, KafkaOwner
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import FencepostError


class KafkaHold(Hold):
    def __init__(
        self, routes: Routes, owner: KafkaOwner, group: str, rows: Sequence[OwnedResource], session: float
    ) -> None:
        super().__init__(group, rows, session)
        self._routes = routes
        self._owner = owner
        self._is_closed = False
        owner.on_lost = self._lost
        self._identity, owner.current = owner.current, self._beat
        tell_after_fork(self)

    def _lost(self) -> None:
        self.lost.set()

    def _beat(self) -> Any:
        """On the session's thread, after every sign of life."""
        self.on_beat()
        return self._identity()

    def close(self) -> None:
        """Give everything back."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._routes:
            try:
                with suppress(FencepostError):  # lost, or out of reach: whoever comes next takes over
                    self._owner.release_all()
            finally:
                self._owner.close()

    def after_fork(self) -> None:
        """In the child: the parent holds it, and its thread gives the signs of life."""
        self.lost = threading.Event()  # the lock of the old one may be held by a thread that is not here
        self.lost.set()
        self._is_closed = True


def hold_on_kafka(settings: ClientSettings, request: ClaimRequest) -> KafkaHold:
    routes = Routes(settings)
    owner = KafkaOwner(settings, routes, patience=settings.request_timeout)
    try:
        rows = owner.claim(request._replace(session=request.session or WAITING_SESSION))
    except BaseException:
        owner.close()
        routes.close()
        raise
    return KafkaHold(routes, owner, request.group, rows, owner.session)

"""`hold` on Apache Kafka: a claim with a session, whose write id is never used for writing.

With every heartbeat the session's thread checks whether the write id was fenced; so the owner learns of a takeover. The
token is for other systems, as on fencepost's server.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fencepost.client.cluster.forking import tell_after_fork
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.claim import LeaseWatch
from fencepost.client.own.hold import Hold
from fencepost.client.own.kafka import WAITING_SESSION, KafkaOwner
from fencepost.clock import SystemClock
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import FencepostError


class KafkaHold(Hold):
    def __init__(self, routes: Routes, owner: KafkaOwner, group: str, rows: Sequence[OwnedResource]) -> None:
        super().__init__(group, rows, owner.lease, SystemClock())
        self._watch = LeaseWatch(self.lease, self._clock, self.look)
        self._watch.go_on()
        self._routes = routes
        self._owner = owner
        self._is_closed = False
        owner.on_lost = self._lost
        self._identity, owner.current = owner.current, self._beat
        tell_after_fork(self)

    def _lost(self) -> None:
        self.lost.set()

    def _beat(self) -> Any:
        """Report a heartbeat; runs on the session's thread."""
        self.on_beat()
        return self._identity()

    def close(self) -> None:
        """Release everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watch.close()
        with self._routes:
            try:
                with suppress(FencepostError):  # lost or unreachable: the next owner takes over
                    self._owner.release_all()
            finally:
                self._owner.close()
                self._let_go()

    def after_fork(self) -> None:
        """Mark the hold as lost in a forked child: the parent owns the resources and sends the heartbeats."""
        self.lost = threading.Event()  # a thread that the child lacks may hold the old lock
        self.lost.set()
        self._is_closed = self._is_parents = True


def hold_on_kafka(settings: ClientSettings, request: ClaimRequest) -> KafkaHold:
    routes = Routes(settings)
    owner = KafkaOwner(settings, routes, patience=settings.request_timeout)
    try:
        rows = owner.claim(request._replace(session=request.session or WAITING_SESSION))
    except BaseException:
        owner.close()
        routes.close()
        raise
    return KafkaHold(routes, owner, request.group, rows)

"""The part of a hold that is the same on both kinds of server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from fencepost.client.cluster.closing import Closing
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced
from fencepost.types import Generation


class Hold(Closing):
    """Resources owned until `close` or a takeover."""

    def __init__(self, group: str, rows: Sequence[OwnedResource], session: float = 0.0) -> None:
        self.group = group
        self.rows = {row.name: row for row in rows}
        self.lost = threading.Event()
        """Set after a takeover, and when the connection ended: the server may be gone."""
        self.session = session
        self.on_beat: Callable[[], object] = _nothing
        """Called on another thread after every answered heartbeat."""

    @property
    def generation(self) -> Generation:
        return next(iter(self.rows.values())).generation

    @property
    def token(self) -> int:
        return next(iter(self.rows.values())).token

    @property
    def generations(self) -> Mapping[str, Generation]:
        return {name: row.generation for name, row in self.rows.items()}

    @property
    def tokens(self) -> Mapping[str, int]:
        return {name: row.token for name, row in self.rows.items()}

    def check(self) -> None:
        """Raise Fenced if the ownership is lost."""
        if self.lost.is_set():
            silent = f", or this one was silent for more than its session of {self.session:g} s" if self.session else ""
            names = ", ".join(self.rows)
            raise Fenced(f"another owner has taken over {names} in group {self.group!r}{silent}", persisted="no")


def _nothing() -> None:
    """Ignore the heartbeat."""

"""A fork waits until no thread is in the middle of loading message classes; and clients hear of it.

A process that forks while another thread (a producer's, say) imports a module has half of that module in the child for
ever, because nobody there goes on with it.

A socket that a child has a copy of stays open when the parent is gone, and with it everything that the connection owns.
So every client that may own something is told, in the child, to let go.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Final, Protocol

from fencepost.wire import messages

log = logging.getLogger(__name__)

loading: Final = threading.RLock()
"""Held by whoever loads, and by whoever forks."""


def wait_for_imports() -> None:
    """From now on, in this process and in those forked from it."""
    messages.load_under(loading)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=loading.acquire, after_in_parent=loading.release, after_in_child=loading.release)


class Forked(Protocol):
    def after_fork(self) -> None:
        """In the child, before anything else runs there."""


_clients: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def tell_after_fork(client: Forked) -> None:
    _clients.add(client)


def _in_child() -> None:
    for client in list(_clients):
        try:
            client.after_fork()
        except Exception:  # one that is in a bad way must not keep the others from hearing of it
            log.exception("after a fork")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

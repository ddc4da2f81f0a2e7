"""Fork safety: a fork waits for imports, and clients close their sockets in the child.

If a process forks while another thread imports a module (message classes load lazily), the child has half of that
module for ever: the importing thread does not exist there.

A socket that a child has a copy of stays open when the parent ends, and so does what the connection owns. So every
client that may own something closes its copies in the child.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Final, NoReturn, Protocol, SupportsIndex

from fencepost.errors import Closed
from fencepost.wire import messages

log = logging.getLogger(__name__)

loading: Final = threading.RLock()
"""Held during the import of message classes, and during a fork."""


def wait_for_imports() -> None:
    """Make forks wait for imports, in this process and in those forked from it."""
    messages.load_under(loading)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=loading.acquire, after_in_parent=loading.release, after_in_child=loading.release)


def of_the_parent(what: str) -> Closed:
    return Closed(f"{what} belongs to the parent: this process was forked from it. Create another one here")


class OnePerProcess:
    """A client with threads or sockets, which can be neither pickled nor copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"a {kind} cannot be pickled or copied: create one in each process, and share it there")


class Forked(Protocol):
    def after_fork(self) -> None:
        """Close the copies of the sockets, in the child, before anything else runs there."""


_clients: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def tell_after_fork(client: Forked) -> None:
    _clients.add(client)


def _in_child() -> None:
    for client in list(_clients):
        try:
            client.after_fork()
        except Exception:  # a broken client must not keep the others from being told
            log.exception("after a fork")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

"""A fork waits until no thread is in the middle of loading message classes.

A process that forks while another thread (a producer's, say) imports a module has half of that module in the child for
ever, because nobody there goes on with it.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from fencepost.wire import messages

loading: Final = threading.RLock()
"""Held by whoever loads, and by whoever forks."""


def wait_for_imports() -> None:
    """From now on, in this process and in those forked from it."""
    messages.load_under(loading)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=loading.acquire, after_in_parent=loading.release, after_in_child=loading.release)

"""A fork waits until the classes of messages that another thread is loading are there."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

import fencepost.client.producer  # noqa: F401 - it is what makes forks wait
from fencepost.client.cluster import forking
from fencepost.wire import messages

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_child_never_has_half_of_what_a_thread_was_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    loaded: list[str] = []

    def slowly(name: str) -> Any:
        begun.set()
        time.sleep(0.3)  # a window for the fork to fall into, if it did not wait
        loaded.append(name)
        return object

    monkeypatch.setattr(messages, "resolve_name", slowly)
    monkeypatch.setattr(messages, "codec", lambda found, most: found)
    thread = threading.Thread(target=messages._codec.__wrapped__, args=(3, 12, "request"))
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if loaded else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with forking.loading:  # and the parent has its lock again
        pass

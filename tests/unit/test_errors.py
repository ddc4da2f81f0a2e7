"""Errors that cross processes: multiprocessing, Spark workers and Celery pickle what a task raises."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import fencepost
from fencepost.core.micro_batch.protocol import Progress, Replaced, SinkNameInUse
from fencepost.core.own.claim_request import Refused
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import BufferFull, ErrorCode, FencepostError, NotOwned, SendFailed, ServerError, Undelivered
from fencepost.server.config.listener import WrongSetting
from fencepost.server.config.loading import WrongConfiguration
from fencepost.types import Generation

pytestmark = pytest.mark.unit


PROGRESS = Progress("q", 4, incarnation=3, token="other", host="there", process=2, time_ms=7)


def of_server(kind: type[Any]) -> FencepostError:
    error: ServerError = kind(ErrorCode.NOT_COORDINATOR, "it has moved")
    error.failed = ("orders",)
    return error


def of_sending(kind: type[Any]) -> FencepostError:
    error: SendFailed = kind("it broke", persisted="no", code=ErrorCode.NETWORK_EXCEPTION, topic="orders", partition=3)
    return error


UNUSUAL: dict[str, Callable[[type[Any]], FencepostError]] = {
    "NotOwned": lambda kind: NotOwned("orders", 3, [1, 2], 4),
    "Refused": lambda kind: Refused("writers", [OwnedResource("orders-0", Generation(3), 7)]),
    "Replaced": lambda kind: Replaced("sink", PROGRESS),
    "SinkNameInUse": lambda kind: SinkNameInUse("in use", PROGRESS),
    "Undelivered": lambda kind: Undelivered(2, (of_sending(SendFailed), of_server(ServerError))),
    "WrongConfiguration": lambda kind: WrongConfiguration([]),
    "WrongSetting": lambda kind: WrongSetting("listen", "no port", because_of=("tls",)),
}
"""How to make those that take more than a message."""


def error_classes() -> list[type[FencepostError]]:
    for module in pkgutil.walk_packages(fencepost.__path__, "fencepost."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[FencepostError]] = [FencepostError]
    for kind in found:
        found.extend(
            sub
            for sub in kind.__subclasses__()
            if sub.__module__.startswith("fencepost.") and not sub.__name__.startswith("_") and sub not in found
        )
    return found


def sample(kind: type[FencepostError]) -> FencepostError:
    if kind.__name__ in UNUSUAL:
        return UNUSUAL[kind.__name__](kind)
    if issubclass(kind, ServerError):
        return of_server(kind)
    if issubclass(kind, SendFailed):
        return of_sending(kind)
    return kind("a message")


def facts(error: Any) -> Any:
    """Everything a handler can ask an error, in a form that can be compared."""
    if isinstance(error, tuple):
        return tuple(map(facts, error))
    if not isinstance(error, FencepostError):
        return error
    names = [name for name, _ in inspect.getmembers(error) if not name.startswith("__")]
    values = {name: getattr(error, name) for name in names}
    return type(error), str(error), {name: facts(value) for name, value in values.items() if not callable(value)}


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickle_copy_and_being_raised_again(kind: type[FencepostError]) -> None:
    error = sample(kind)
    error.add_note("seen by the first handler")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error), error.fresh()):
        assert other is not error
        assert facts(other) == facts(error)
        assert other.__traceback__ is None


def test_a_full_buffers_error_leaves_its_ticket_behind() -> None:
    """A ticket is of a producer, and that stays in its process."""
    error = BufferFull("full")
    error.accepted = object.__reduce_ex__  # stands for a ticket
    assert pickle.loads(pickle.dumps(error)).accepted is None
    assert error.fresh().accepted is error.accepted


def test_a_fresh_error_names_the_same_cause_and_has_its_own_notes() -> None:
    error = FencepostError("no")
    error.__cause__ = ValueError("why")
    error.add_note("first")
    again = error.fresh()
    again.add_note("second")
    assert again.__cause__ is error.__cause__
    assert error.__notes__ == ["first"]

"""The driver of generator protocols.

A protocol is a generator that decides and does nothing itself: it yields a step and is sent the answer. A caller
carries the steps out, over sockets or in a test. The handshake (`client/cluster/handshake.py`) and a claim on Apache
Kafka (`core/own/kafka_steps.py`) are such protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Finished(Generic[ResultT]):
    """The end of a protocol, with its result."""

    result: ResultT


def advance(steps: Generator[StepT, Any, ResultT], answer: Any) -> StepT | Finished[ResultT]:
    """Return the step after `answer`; None starts the protocol. For callers that get their answers in callbacks."""
    try:
        return steps.send(answer)
    except StopIteration as end:
        return Finished(end.value)


def carry_out(
    steps: Generator[StepT, Any, ResultT],
    perform: Callable[[StepT], Any],
    failures: tuple[type[Exception], ...] = (),
) -> ResultT:
    """Perform every step in turn and return the protocol's result.

    If `perform` raises one of `failures`, the exception is thrown into the generator, which decides how to go on. Any
    other exception ends the protocol.
    """
    with closing(steps):
        step = advance(steps, None)
        while not isinstance(step, Finished):
            try:
                answer = perform(step)
            except failures as failure:
                step = _fail(steps, failure)
            else:
                step = advance(steps, answer)
        return step.result


def _fail(steps: Generator[StepT, Any, ResultT], failure: Exception) -> StepT | Finished[ResultT]:
    try:
        return steps.throw(failure)
    except StopIteration as end:
        return Finished(end.value)

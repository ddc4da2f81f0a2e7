"""A program that is ended while it works. It notes each value when `send` has accepted it (S), and when it
is acknowledged (A).

python shutdown.py ADDRESS TOPIC HOW WORK MODE NOTES SECONDS

HOW: how it ends. The signals come from outside, after the line "ready"; all other ends come by themselves, after so
many SECONDS, while a thread does the WORK.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import fencepost
from fencepost.client.produce.ticket import Ticket

ADDRESS, TOPIC, HOW, WORK, MODE, NOTES, SECONDS = sys.argv[1:] if len(sys.argv) == 8 else [""] * 7
NUMBERS = itertools.count()
PATIENCE: Any = {"exit_timeout": 600.0, "delivery_timeout": 600.0}
"""Longer than the test waits: a program that waits for what never comes counts as hung. The server is there."""


class Notes:
    """Each note is one write, so that no end of the program can tear it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, kind: str, value: object) -> None:
        os.write(self._file, f"{kind} {value}\n".encode())


def plain(note: Notes) -> Callable[[], object]:
    """Return one round of the work."""
    name = TOPIC if WORK == "transaction" else None
    producer = fencepost.Producer(ADDRESS, name=name, **PATIENCE)

    def send() -> tuple[int, Ticket]:
        number = next(NUMBERS)
        ticket = producer.send(TOPIC, str(number), partition=0)
        note("S", number)
        return number, ticket

    def result() -> None:
        number, ticket = send()
        ticket.result()
        note("A", number)

    def flush() -> None:
        sent = [send()[0] for _ in range(10)]
        producer.flush()
        for number in sent:
            note("A", number)

    def close() -> None:
        with fencepost.Producer(ADDRESS, **PATIENCE) as other:
            number = next(NUMBERS)
            other.send(TOPIC, str(number), partition=0)
            note("S", number)
        note("A", number)

    def transaction() -> None:
        with producer.transaction():
            sent = [send()[0] for _ in range(3)]
        for number in sent:
            note("A", number)

    result()
    if WORK == "owner":
        producer.own(TOPIC, [f"{TOPIC}-0"], generation=1)
    globals()["kept"] = producer  # it is not garbage before the program ends
    rounds: dict[str, Callable[[], object]] = {
        "idle": lambda: time.sleep(0.01),
        "send": send,
        "result": result,
        "owner": result,
        "flush": flush,
        "close": close,
        "transaction": transaction,
    }
    return rounds[WORK]


async def on_loop(note: Notes) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as the docs say
    name = TOPIC if WORK == "transaction" else None
    async with fencepost.AsyncProducer(ADDRESS, name=name, **PATIENCE) as producer:

        def send() -> tuple[int, Ticket]:
            number = next(NUMBERS)
            ticket = producer.send(TOPIC, str(number), partition=0)
            note("S", number)
            return number, ticket

        number, ticket = send()
        await ticket
        note("A", number)
        if WORK == "owner":
            await producer.own(TOPIC, [f"{TOPIC}-0"], generation=1)
        print("ready", flush=True)
        end = time.monotonic() + float(SECONDS)
        while HOW.startswith("SIG") or time.monotonic() < end:
            if WORK == "idle":
                await asyncio.sleep(0.01)
            elif WORK == "transaction":
                async with producer.transaction():
                    sent = [send()[0] for _ in range(3)]
                for number in sent:
                    note("A", number)
            elif WORK in ("send", "flush", "close"):
                sent = [send()[0] for _ in range(10)]
                await producer.flush()
                for number in sent:
                    note("A", number)
            else:
                number, ticket = send()
                await ticket
                note("A", number)
        finish(note)


class Last:
    """Sends when it is garbage, which is at the interpreter's end."""

    def __init__(self, send: Callable[[], object]) -> None:
        self.send = send

    def __del__(self) -> None:
        self.send()


def finish(note: Notes) -> None:
    if HOW == "exit":
        sys.exit(3)
    if HOW == "exception":
        raise ValueError("on purpose")


def last_words(note: Notes) -> Callable[[], object]:
    def send() -> None:
        with fencepost.Producer(ADDRESS, **PATIENCE) as producer:
            producer.send(TOPIC, "last", partition=0)
            note("S", "last")
        note("A", "last")

    return send


def main() -> None:
    note = Notes(NOTES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as services do: the stack is unwound
    if HOW == "atexit":
        atexit.register(last_words(note))
    if HOW == "del":
        globals()["last"] = Last(last_words(note))
    if MODE == "asyncio":
        try:
            asyncio.run(on_loop(note))
        except asyncio.CancelledError:
            sys.exit(143)
        return
    work: Any = plain(note)
    print("ready", flush=True)
    if HOW.startswith("SIG"):
        while True:
            work()

    def for_ever() -> None:
        while True:
            work()

    threading.Thread(target=for_ever, daemon=True).start()
    time.sleep(float(SECONDS))
    finish(note)


if __name__ == "__main__":
    main()

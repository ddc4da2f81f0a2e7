"""Stacks of the server's threads and tasks, without the values of variables.

Threads can be asked for by a signal too, SIGUSR1: a handler in C writes their stacks to the file `stacks.txt` of the
data directory, also while the event loop hangs. Only the server's user can send the signal and read the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

FILE: Final = "stacks.txt"
MOST_TASKS: Final = 5000
_DEPTH: Final = 30
_NAMED: Final = 5
_POLL_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 1.0
"""The signal's handler writes in several pieces: after this time without a further one it has ended. Not less, because
on a busy machine the process may have to wait between two of them, and the main thread is the last."""


def _first_line(pid: int) -> str:
    return f"stacks of process {pid}"


def thread_stacks() -> str:
    """Return the stacks of all threads, with their names. It writes a file, so the loop leaves it to a thread."""
    names = [f"thread 0x{each.ident or 0:016x}: {each.name}\n" for each in threading.enumerate()]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return "".join(names) + "\n" + file.read()


def task_stacks() -> str:
    """Return the stacks of this loop's tasks, equal ones once, with the number and some names of their tasks."""
    names: dict[tuple[str, ...], list[str]] = defaultdict(list)
    tasks = asyncio.all_tasks()
    for number, task in enumerate(tasks):
        if number == MOST_TASKS:
            break
        names[tuple(_where(frame) for frame in _frames(task))].append(task.get_name())
    found = [f"{len(tasks)} tasks" + (f", of which {MOST_TASKS} are shown" if len(tasks) > MOST_TASKS else "")]
    for stack, of in sorted(names.items(), key=lambda each: -len(each[1])):
        more = "" if len(of) <= _NAMED else f" and {len(of) - _NAMED} more"
        found.append(f"{len(of)} × {', '.join(of[:_NAMED])}{more}:\n" + "\n".join(f"  {line}" for line in stack))
    return "\n\n".join(found) + "\n"


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a task, outermost first. `Task.get_stack` has only the first one of a task that waits."""
    waiting: Any = task.get_coro()
    for _ in range(_DEPTH):
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            return
        yield frame
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def _where(frame: FrameType) -> str:
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}'


@contextlib.contextmanager
def stacks_on_signal(folder: Path) -> Iterator[None]:
    """Let SIGUSR1 append the stacks of all threads to the file in `folder`, within the block."""
    path, number = folder / FILE, None
    if hasattr(faulthandler, "register"):  # not on Windows
        with contextlib.suppress(OSError):  # a disk that is full to the last byte: the server starts without
            path.unlink(missing_ok=True)  # it may still be that of a server which is about to end
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    if number is None:
        yield
        return
    with os.fdopen(number, "a", encoding="utf-8") as file:
        # What `unregister` restores: a signal that was sent just before must not end the process.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        try:
            # Whoever sends the signal looks for this line first: without the handler it would end the process.
            file.write(_first_line(os.getpid()) + "\n")
            file.flush()
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), 0)
            faulthandler.unregister(signal.SIGUSR1)


def ask_for_stacks(folder: Path, pid: int, seconds: float) -> str | None:
    """Send the signal to the server of this data directory and return what it wrote; None if it takes no signal, or has
    written nothing within `seconds`."""
    path = folder / FILE
    try:
        before = path.read_text(encoding="utf-8", errors="replace")
        if before.partition("\n")[0] != _first_line(pid):
            return None
        os.kill(pid, signal.SIGUSR1)
    except OSError:
        return None
    ends, size, since = time.monotonic() + seconds, len(before), time.monotonic()
    while time.monotonic() < ends:
        time.sleep(_POLL_SECONDS)
        now = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if len(now) != size:
            size, since = len(now), time.monotonic()
        elif size > len(before) and time.monotonic() - since > _QUIET_SECONDS:
            return now[len(before) :]
    return None

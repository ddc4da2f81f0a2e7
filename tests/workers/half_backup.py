"""A backup that stops half-way, for a test to end it there.

    python -m tests.workers.half_backup DATA DEST [command]

It prints `half` when it has copied something, and then waits to be killed. With `command` it is `fencepost backup`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost.cli import backup
from fencepost.server.backup import folder, point


def stop_for_ever(_bytes: int) -> None:
    print("half", flush=True)
    threading.Event().wait()


@contextmanager
def stopping_bar(verb: str, *, quiet: bool) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    assert verb
    assert not quiet
    yield (lambda _total: None), stop_for_ever


def main() -> None:
    data, dest, *how = sys.argv[1:]
    if how:
        backup._bar = stopping_bar
        backup.backup([dest, "--data", data])
    with point.taken(Path(data)) as files:
        folder.back_up(files, Path(dest), advance=stop_for_ever)


if __name__ == "__main__":
    main()

"""A backup that stops half-way, for a test to kill it there.

    python -m tests.workers.half_backup DATA DEST

It prints `half` when it has copied something, and then waits to be killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from fencepost.server.backup import folder, point


def stop_for_ever(_bytes: int) -> None:
    print("half", flush=True)
    threading.Event().wait()


def main() -> None:
    data, dest = map(Path, sys.argv[1:])
    with point.taken(data) as files:
        folder.back_up(files, dest, advance=stop_for_ever)


if __name__ == "__main__":
    main()

"""A client that minds its own business while others attack: it writes one acknowledged record every 20 ms.

It says, whenever it is asked, how many records were acknowledged since it was last asked and how long the longest one
took. It is a process of its own, so that it is not slowed down by what the test does. Of the longest one it also says
how long the server's loop and it itself stood in line for a processor, which is what the machine added.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

PACE_SECONDS: Final = 0.02
LATE_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 100


class Seen(NamedTuple):
    """What a bystander saw between two questions."""

    answers: int
    """Records acknowledged."""
    longest: float
    """Seconds that the slowest of them took."""
    lost: int
    """Connections that the server closed, or records that it refused."""
    late: int = 0
    """Records that took longer than `LATE_SECONDS`."""
    queued: float = 0.0
    """Seconds of the longest one in which the server's loop or the bystander was ready to run, and had no processor."""

    def and_then(self, later: Seen) -> Seen:
        """Return both as one."""
        slower = max(self, later, key=lambda each: each.longest)
        return Seen(
            self.answers + later.answers,
            slower.longest,
            self.lost + later.lost,
            self.late + later.late,
            slower.queued,
        )


class Bystander:
    def __init__(self, address: str, topic: str, pid: int) -> None:
        """`pid` is that of the server, whose first thread runs its loop."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.bystander", address, topic, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask()  # it has written its first record

    def ask(self) -> Seen:
        """Wait for the record that is under way, and return what happened since the last question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("ask\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bystander has ended")
        return Seen(*json.loads(line))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def seconds_in_line(of: list[Path]) -> float:
    """Return how long these threads have been ready to run without a processor; 0.0 if the system does not say."""
    return sum(int(path.read_text().split()[1]) for path in of if path.exists()) / 1e9


def main(address: str, topic: str, pid: str) -> None:
    from fencepost.errors import ErrorCode
    from tests.support.batches import batch
    from tests.support.raw import ConnectionEnded, RawClient

    record = batch([b"mine"])
    client: RawClient | None = None
    seen = nothing = Seen(0, 0.0, 0)
    schedules = [Path("/proc") / each / "schedstat" for each in (pid, "self")]
    while True:
        answers = lost = 0
        began, in_line = time.monotonic(), seconds_in_line(schedules)
        try:
            client = client or RawClient(address, client_id="bystander", timeout=_PATIENCE_SECONDS)
            if client.produce(topic, record).error is ErrorCode.NONE:
                answers = 1
            else:
                lost = 1
        except (OSError, ConnectionEnded):
            client, lost = None, 1
        in_line = seconds_in_line(schedules) - in_line
        took = time.monotonic() - began
        seen = seen.and_then(Seen(answers, took, lost, int(took > LATE_SECONDS), min(in_line, took)))
        asked, _, _ = select.select([sys.stdin], [], [], max(0.0, PACE_SECONDS - took))
        if asked and seen.answers:
            if not sys.stdin.readline():
                return
            print(json.dumps(seen), flush=True)
            seen = nothing


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A client that minds its own business while others attack: it writes one acknowledged record every 20 ms.

It says, whenever it is asked, how many records were acknowledged since it was last asked and how long the longest one
took. It is a process of its own, so that it is not slowed down by what the test does.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
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


class Bystander:
    def __init__(self, address: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.bystander", address, topic],
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


def main(address: str, topic: str) -> None:
    from fencepost.errors import ErrorCode
    from tests.support.batches import batch
    from tests.support.raw import ConnectionEnded, RawClient

    record = batch([b"mine"])
    client: RawClient | None = None
    answers, longest, lost, late = 0, 0.0, 0, 0
    while True:
        began = time.monotonic()
        try:
            client = client or RawClient(address, client_id="bystander", timeout=_PATIENCE_SECONDS)
            if client.produce(topic, record).error is ErrorCode.NONE:
                answers += 1
            else:
                lost += 1
        except (OSError, ConnectionEnded):
            client, lost = None, lost + 1
        took = time.monotonic() - began
        longest = max(longest, took)
        late += took > LATE_SECONDS
        asked, _, _ = select.select([sys.stdin], [], [], max(0.0, PACE_SECONDS - took))
        if asked and answers:
            if not sys.stdin.readline():
                return
            print(json.dumps([answers, longest, lost, late]), flush=True)
            answers, longest, lost, late = 0, 0.0, 0, 0


if __name__ == "__main__":
    main(*sys.argv[1:])

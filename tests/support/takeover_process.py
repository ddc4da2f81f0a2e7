"""Writers in processes of their own that take over from each other: how a test speaks with one, and it with the test.

Commands go to its standard input, answers come from its standard output, a line each, beginning with a word. What is
common to all: when it has claimed, it says `owns GENERATION TOKEN`, and floods its partition with "TOKEN NUMBER"
until it is fenced, or spoken to.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys


class Contender:
    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.token = 0
        self.generation = 0

    def say(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")

    def hear(self, word: str) -> str:
        """What stands behind this word, which has to be the next one it says."""
        assert self._process.stdout is not None
        said, _, rest = self._process.stdout.readline().rstrip("\n").partition(" ")
        assert said == word, (said, rest)
        return rest

    def numbers(self, word: str) -> tuple[int, ...]:
        return tuple(map(int, self.hear(word).split()))

    def claim(self, command: str) -> None:
        """Says it, and waits until the writer owns."""
        self.say(command)
        self.generation, self.token = self.numbers("owns")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.wake()
        self._process.kill()
        self._process.communicate()


def is_spoken_to() -> bool:
    """In the writer: it is told to stop, or the test has gone."""
    return bool(select.select([sys.stdin], [], [], 0)[0])

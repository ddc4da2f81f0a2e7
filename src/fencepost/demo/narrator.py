"""The demo's output: a line per event; at a terminal with colours and progress bars."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

_LABEL: Final = 12


class Narrator:
    """No output, for `--json`."""

    def say(self, label: str, text: str) -> None:
        pass

    def blow(self, label: str, text: str) -> None:
        """Report that something was killed, stopped or rejected."""
        self.say(label, text)

    @contextlib.contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the progress so far."""
        yield lambda _done: None


class Lines(Narrator):
    """Plain lines without a terminal, flushed at once, so that a log has them in time."""

    def say(self, label: str, text: str) -> None:
        print(f"  {label:<{_LABEL}}  {text}", flush=True)

    @contextlib.contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        quarter = 1

        def moved(done: int) -> None:
            nonlocal quarter
            while quarter < 4 and done * 4 >= total * quarter:
                self.say(label, f"{quarter * 25} %")
                quarter += 1

        yield moved


class Terminal(Narrator):
    """Coloured labels and progress bars at a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)

    def say(self, label: str, text: str, style: str = "bold cyan") -> None:
        from rich.text import Text

        self._console.print(Text.assemble("  ", (f"{label:<{_LABEL}}", style), "  ", text), soft_wrap=True)

    def blow(self, label: str, text: str) -> None:
        self.say(label, text, "bold red")

    @contextlib.contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn(f"  {label:<{_LABEL}} "), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(label, total=total)
            yield lambda done: progress.update(task, completed=done)


def choose(silent: bool = False) -> Narrator:
    if silent:
        return Narrator()
    return Terminal() if sys.stdout.isatty() else Lines()

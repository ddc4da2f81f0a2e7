"""The code blocks of README.md and docs/*.md, and how they are run.

A fence names its language. `python`, `sh` and `console` blocks are executed, those of a page from top to bottom: Python
in one namespace, in which `servers` is a running server's address; `sh` and `console` line by line, each a command that
must succeed. A block with a test function is handed to pytest. In `console`, commands stand behind `$ ` and what
follows is compared with what they print: numbers, times and widths may differ, `…` stands for anything. `text`,
`toml` and `properties` are no programs.

Comments around a fence, which readers do not see, change that:

    <!-- not run: why -->       the block is not executed
    <!-- file: server.toml -->  the block is the content of this file
    <!-- given: a_script -->    what the text takes for granted: made, and looked at afterwards, by `page_setups.py`
    <!-- given:                 the same, in place: Python that is executed first
    Path("nightly.sh").touch()
    -->
    <!-- then:                  behind the fence: Python that is executed afterwards, to see that it did what it should
    assert ticket.done()
    -->

127.0.0.1:9092 in a block is the server of the test, 127.0.0.1:9192 a second one, 127.0.0.1:9093 a free port.
`fencepost serve` is started on a free port, or as its configuration says, for the commands behind it.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

import fencepost
from tests.support import page_setups
from tests.support.process import free_port

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
EXECUTED: Final = frozenset({"python", "sh", "console"})
LANGUAGES: Final = EXECUTED | {"text", "properties", "toml"}

_SECONDS: Final = 100
_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL
)
_COMMENTS: Final = re.compile(r"(?:<!--(?:(?!-->).)*-->\s*)+\Z", re.DOTALL)
_FILE: Final = re.compile(r"<!-- file: (\S+) -->")
_NOT_RUN: Final = re.compile(r"<!-- not run: (.+?) -->", re.DOTALL)
_GIVEN_BY_NAME: Final = re.compile(r"<!-- given: (\w+) -->")
_GIVEN: Final = re.compile(r"<!-- given:\n(.*?)-->", re.DOTALL)
_THEN: Final = re.compile(r"\s*<!-- then:\n(.*?)-->", re.DOTALL)
_NEEDS_SPARK: Final = re.compile(r"\bspark\b|\bfencepost copy\b|\.writeStream\b")


class Block(NamedTuple):
    page: Path
    line: int
    """Of its first line of code."""
    language: str
    text: str
    not_run: str
    """Why it is not executed, or nothing."""
    file: str
    """The name of the file that it is the content of, or nothing."""
    given_by_name: tuple[str, ...]
    given: str
    then: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_executed(self) -> bool:
        return (self.language in EXECUTED or bool(self.file)) and not self.not_run

    @property
    def needs_spark(self) -> bool:
        return _NEEDS_SPARK.search(self.given + self.text) is not None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [_block(page, text, found) for found in _FENCE.finditer(text)]


def _block(page: Path, text: str, found: re.Match[str]) -> Block:
    before = _COMMENTS.search(text, 0, found.start())
    comments = before[0] if before is not None else ""
    not_run = _NOT_RUN.search(comments)
    return Block(
        page,
        text.count("\n", 0, found.start("text")) + 1,
        found["language"].strip(),
        textwrap.dedent(found["text"]),
        not_run[1] if not_run is not None else "",
        file[1] if (file := _FILE.search(comments)) is not None else "",
        tuple(given[1] for given in _GIVEN_BY_NAME.finditer(comments)),
        "".join(given[1] for given in _GIVEN.finditer(comments)),
        then[1] if (then := _THEN.match(text, found.end())) is not None else "",
    )


class Run:
    """The blocks of one page, executed one after the other in the current directory."""

    def __init__(self, servers: str, second: str, **namespace: Any) -> None:
        self._addresses = {
            "127.0.0.1:9092": servers,
            "127.0.0.1:9192": second,
            "127.0.0.1:9093": f"127.0.0.1:{free_port()}",
        }
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FENCEPOST_SERVERS": servers,
            "HOME": str(Path.cwd()),  # a page may tell the reader to change a file there
        }
        self._namespace = {"__name__": "page", "Path": Path, "fencepost": fencepost, "servers": servers, **namespace}
        self._stack = ExitStack()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def execute(self, block: Block) -> None:
        made = [getattr(page_setups, name)(self._namespace) for name in block.given_by_name]
        for each in made:
            next(each)
        self._execute(block)
        for each in made:
            next(each, None)

    def _execute(self, block: Block) -> None:
        self._python(block, block.given)
        if block.file:
            Path(block.file).write_text(self._here(block.text), encoding="utf-8")
        elif block.language == "console":
            self._console(block)
        elif block.language == "sh":
            for command in commands(block):
                self._shell(block, command)
        elif re.search(r"^(async )?def test_", block.text, re.MULTILINE):
            self._pytest(block)
        else:
            self._python(block, block.text, block.line)
        self._python(block, block.then)

    def _here(self, text: str) -> str:
        for written, address in self._addresses.items():
            text = text.replace(written, address)
        return text

    def _python(self, block: Block, text: str, line: int = 0) -> None:
        # Empty lines in front, so that a traceback shows the page's own line.
        source = "\n" * (line - 1) + self._here(text)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code: CodeType = compile(source, str(block.page), "exec", flags, dont_inherit=True)
        outcome = eval(code, self._namespace)
        if asyncio.iscoroutine(outcome):
            asyncio.run(outcome)

    def _pytest(self, block: Block) -> None:
        Path("test_page.py").write_text("import fencepost\n" + self._here(block.text), encoding="utf-8")
        self._shell(block, "python -m pytest -q -p no:cacheprovider test_page.py")

    def _console(self, block: Block) -> None:
        for command, expected in _session(block.text):
            printed = self._shell(block, command)
            wanted = "\n".join(map(_pattern, expected))
            if expected and re.fullmatch(wanted, "\n".join(map(_plain, printed.splitlines()))) is None:
                raise AssertionError(f"{block}: `{command}` printed\n{printed}\nand not\n" + "\n".join(expected))

    def _shell(self, block: Block, command: str) -> str:
        if command.startswith("fencepost serve"):
            return self._serve(command)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {self._here(command)}"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{block}: `{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _serve(self, command: str) -> str:
        return self._stack.enter_context(self._served(command))

    @contextmanager
    def _served(self, command: str) -> Iterator[str]:
        """The server that the block starts, on a port of its own; what follows in the page speaks to it."""
        port = "" if "--listen" in command or "--config" in command else " --listen 127.0.0.1:0"
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command.partition(' #')[0]}{port}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        with server.stdout:
            lines = [server.stdout.readline(), server.stdout.readline()]
            address = lines[0].partition(" listening on ")[2].split()[0]
            if "--config" not in command:  # the page names the addresses of such a server, and how to connect
                self._environment["FENCEPOST_SERVERS"] = self._addresses["127.0.0.1:9092"] = address
                self._namespace["servers"] = address
            yield "".join(lines)
            server.terminate()
            server.wait()


def commands(block: Block) -> Iterator[str]:
    joined = block.text.replace("\\\n", " ")
    return (line for line in joined.splitlines() if line.strip() and not line.startswith("#"))


def _session(text: str) -> Iterator[tuple[str, list[str]]]:
    command, expected = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), []
        elif line.strip():
            expected.append(line)
    if command:
        yield command, expected


def _plain(line: str) -> str:
    """Without what differs from run to run: numbers, units of time, widths of columns, and where the data lies."""
    line = re.sub(r"/[\w./-]+", "PATH", line)
    line = re.sub(r"\d[\d,.:+-]*", "#", line)
    line = re.sub(r"# (ms|s|min|h|d)\b", "# s", line)
    return " ".join(line.split())


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, _plain(line).split("…")))

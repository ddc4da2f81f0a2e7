"""A tool that writes the table of typical mistakes in docs/troubleshooting.md, by making each of them.

python -m tools.mistakes --write    puts it into the page; a test fails when it is out of date
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from typing import Final, NamedTuple

import fencepost
from tools.section import ROOT, Section

PAGE: Final = ROOT / "docs" / "troubleshooting.md"
_SECTION: Final = Section(PAGE, "<!-- table: written by tools/mistakes.py -->", "<!-- end of the table -->")
_SECONDS: Final = 60


class Mistake(NamedTuple):
    shown: str
    """The user's code, as the table shows it."""
    program: str
    """The whole program; SERVERS is a running server, NOBODY an address where nothing listens."""


MISTAKES: Final = (
    Mistake(
        "the program ends without `flush` or `close`, and the server is away",
        'p = fencepost.Producer("NOBODY", exit_timeout=0.5)\np.send("orders", b"1")',
    ),
    Mistake("a wrong port, `Reader`", 'fencepost.Reader("NOBODY", "orders")'),
    Mistake(
        "a wrong port, `Producer`",
        'with fencepost.Producer("NOBODY", delivery_timeout=1, request_timeout=1) as p:\n    p.send("orders", b"1")',
    ),
    Mistake('`Producer("http://127.0.0.1:9092")`', 'fencepost.Producer("http://127.0.0.1:9092")'),
    Mistake("`Producer(bootstrap_servers=…)`", 'fencepost.Producer(bootstrap_servers="SERVERS")'),
    Mistake("`Producer({'bootstrap.servers': …})`", 'fencepost.Producer({"bootstrap.servers": "SERVERS"})'),
    Mistake("`Producer(…, acks=1)`", 'fencepost.Producer("SERVERS", acks=1)'),
    Mistake("`Producer(…, compresion=…)`", 'fencepost.Producer("SERVERS", compresion="lz4")'),
    Mistake("`Reader(…, strat=…)`", 'fencepost.Reader("SERVERS", "three", strat="latest")'),
    Mistake(
        "`send(…, timestamp=int(time.time()))`",
        'fencepost.Producer("SERVERS").send("orders", b"1", timestamp=1763424000)',
    ),
    Mistake("`send(…, timestamp=-5)`", 'fencepost.Producer("SERVERS").send("orders", b"1", timestamp=-5)'),
    Mistake('`send("my orders", …)`', 'fencepost.Producer("SERVERS").send("my orders", b"1")'),
    Mistake("`send(…)` after `close()`", 'p = fencepost.Producer("SERVERS")\np.close()\np.send("orders", b"1")'),
    Mistake("`Reader(…, start=1000)` of a topic with 3 records", 'fencepost.Reader("SERVERS", "three", start=1000)'),
    Mistake("`Server(max_conections=…)`", "fencepost.Server(max_conections=5)"),
    Mistake("`transaction()` without a name", 'fencepost.Producer("SERVERS").transaction()'),
)


def table() -> str:
    with fencepost.Server() as server:
        with fencepost.Producer(server.address) as producer:
            for number in range(3):
                producer.send("three", str(number))
        rows = [f"| {each.shown} | {_answer(each, server.address)} |" for each in MISTAKES]
    return "\n".join(["| mistake | the answer, in one line |", "|---|---|", *rows])


def _answer(mistake: Mistake, servers: str) -> str:
    """Return the line that a user sees last: of the traceback, or what a program that ends says on stderr."""
    text = "import fencepost\n" + mistake.program.replace("SERVERS", servers).replace("NOBODY", "127.0.0.1:1")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=_SECONDS, cwd=folder, check=False
        )
    lines = [line for line in done.stderr.splitlines() if line.strip() and "ResourceWarning" not in line]
    if not lines:
        raise AssertionError(f"{mistake.shown}: nothing was said")
    said = re.sub(r"^fencepost\.(?:\w+\.)*(?=\w+: )", "", lines[-1])
    return said.replace(servers, "127.0.0.1:9092").replace("|", "\\|")


def page(text: str) -> str:
    """Return the page with a current table."""
    return _SECTION.within(text, table())


if __name__ == "__main__":
    _SECTION.main(table)

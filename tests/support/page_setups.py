"""What pages take for granted: `<!-- given: NAME -->` in front of a block names one of these.

Before the `yield` what the block needs is made, in the page's namespace; afterwards it is seen whether the block did
what the text around it says.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import fencepost

Namespace: TypeAlias = dict[str, Any]


def a_stream_of_orders(page: Namespace) -> Iterator[None]:
    """A streaming DataFrame `events`; a sink that writes each of them once to orders-enriched."""
    servers = page["servers"]
    with fencepost.Admin(servers) as admin:
        for topic in ("orders", "orders-enriched"):
            admin.create_topic(topic, partitions=2)
    with fencepost.Producer(servers) as producer:
        for number in range(10):
            producer.send("orders", str(number), key=str(number))
    source = page["spark"].readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    page["events"] = source.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    yield
    page["query"].processAllAvailable()
    with fencepost.Reader(servers, "orders-enriched", stop="latest") as reader:
        assert sorted(int(record.value or b"") for record in reader) == list(range(10))


def an_owner_that_sleeps(page: Namespace) -> Iterator[None]:
    """Somebody owns ledger-0 and has written; once the block has taken over, nothing of it gets in."""
    servers = page["servers"]
    with fencepost.Admin(servers) as admin:
        admin.create_topic("ledger", partitions=1)
    old = fencepost.Producer(servers)
    assert old.own("ledger-writers", ["ledger-0"], generation=1).generation == 1
    old.send("ledger", b"the old one's").result()
    yield
    assert page["claim"].generation == 2
    with pytest.raises(fencepost.Fenced):
        old.send("ledger", b"too late", partition=0).result()
    with suppress(fencepost.FencepostError):
        old.close()
    with fencepost.Reader(servers, "ledger", stop="latest") as reader:
        assert [record.value for record in reader] == [b"the old one's", b"mine"]


def a_script(page: Namespace) -> Iterator[None]:
    """nightly.sh, which leaves a trace."""
    script = Path("nightly.sh")
    script.write_text('#!/bin/sh\necho "$FENCEPOST_TOKEN" > token\n')
    script.chmod(0o755)
    yield
    assert int(Path("token").read_text()) > 0


def a_suite_of_two_workers(page: Namespace) -> Iterator[None]:
    """Run the page's `conftest.py` as it stands there, with tests on two workers of xdist."""
    yield
    from tests.support.pages import ROOT, blocks

    text = next(block.text for block in blocks(ROOT / "docs" / "testing.md") if "pytest_configure" in block.text)
    Path("shared").mkdir()
    Path("shared/conftest.py").write_text(text, encoding="utf-8")
    Path("shared/test_shared.py").write_text(
        "import os, fencepost, pathlib, pytest\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_every_worker_writes(servers, number):\n"
        "    with fencepost.Producer(servers) as producer:\n"
        "        producer.send('shared', str(number))\n"
        "    pathlib.Path(f'worker-{number}').write_text(os.environ['PYTEST_XDIST_WORKER'] + ' ' + servers)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "shared"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    told = [path.read_text(encoding="utf-8").split() for path in Path().glob("worker-*")]
    assert {worker for worker, _ in told} == {"gw0", "gw1"}
    assert len({address for _, address in told}) == 1

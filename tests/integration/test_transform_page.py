"""The program of docs/transactions.md (consume, transform, produce) does each input exactly once when it is killed."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

import fencepost
from tests.integration.conftest import TestedServer
from tests.support.pages import ROOT, blocks
from tests.support.process import Child

pytestmark = [pytest.mark.integration, pytest.mark.fault]

RECORDS = 2000
KILLS = 3


def program(name: str, servers: str) -> str:
    """Return the page's program with names of this test, and one batch per transaction."""
    page = ROOT / "docs" / "transactions.md"
    text = next(block.text for block in blocks(page) if "init_transactions" in block.text)
    for word in ("numbers", "doubled", "doublers", "doubler"):
        text = text.replace(f'"{word}"', f'"{name}-{word}"')
    assert 'stop="latest")' in text
    return f"servers = {servers!r}\n" + text.replace('stop="latest")', 'stop="latest", partition_bytes=1)')


@pytest.mark.every_run("fencepost")
def test_a_killed_transformer_goes_on_exactly_once(server: TestedServer, name: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    numbers, doubled = f"{name}-numbers", f"{name}-doubled"
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(numbers, 2)
        admin.create_topic(doubled, 2)
        with fencepost.Producer(server.address) as producer:
            for number in range(RECORDS):
                producer.send(numbers, str(number), key=str(number))
                if number % 20 == 19:
                    producer.flush()  # many small batches, so that there are many transactions
        script = tmp_path / "transform.py"
        script.write_text(program(name, server.address), encoding="utf-8")
        kills = 0
        for _ in range(KILLS):
            wanted = sum(admin.latest(doubled).values()) + chance.randrange(20, RECORDS // 5)
            child = Child([sys.executable, script], log=tmp_path / "log")
            while child.exit_code is None and sum(admin.latest(doubled).values()) < wanted:
                time.sleep(0.01)  # the event is in another process: the log grows
            kills += child.exit_code is None
            child.kill()
        assert kills, "the program was too fast to be killed in the middle"
        child = Child([sys.executable, script], log=tmp_path / "log")
        assert child.wait(100) == 0, child.output()
    with fencepost.Reader(server.address, doubled, stop="latest") as reader:
        found = sorted(int(record.value or b"") for record in reader)
    assert found == [2 * number for number in range(RECORDS)]

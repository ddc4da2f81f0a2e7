"""Work ahead: a batch that another thread has packed is equal to the byte, whenever it is finished or dropped."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.unit.kernel.implementations import COMPILED, NOW, Kernel

pytestmark = pytest.mark.unit

NONE, GZIP, LZ4 = 0, 1, 3
STAMP: dict[str, Any] = {"pid": 7, "epoch": 3, "base_sequence": 99}


def filled(kernel: Kernel, size: int, seed: int = 0) -> Any:
    """A builder with about so many bytes, of which some compress and some do not."""
    chance = random.Random(seed)
    builder = kernel.BatchBuilder()
    number = 0
    while builder.size < size:
        value = chance.randbytes(chance.randrange(200)) + b"the same in each record " * chance.randrange(9)
        builder.append(b"key-%d" % (number % 100), value, NOW + number)
        number += 1
    return builder


@pytest.mark.parametrize("size", [100, 65_000, 66_000, 70_001, 300_000, 1_200_000])
@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4], ids=["none", "gzip", "lz4"])
def test_a_batch_worked_ahead_is_equal_to_one_that_is_not(kernel: Kernel, codec: int, size: int) -> None:
    plain, ahead = filled(kernel, size), filled(kernel, size)
    ahead.work_ahead(codec)
    made = ahead.finish(codec, **STAMP)
    assert bytes(made) == bytes(plain.finish(codec, **STAMP))
    assert len(kernel.decode_batch(made)) > 0  # which checks the checksum
    assert ahead.count == 0
    ahead.append(None, b"next", NOW)
    assert len(kernel.decode_batch(ahead.finish(codec))) == 1


@pytest.mark.parametrize(("begun", "ended"), [(NONE, LZ4), (LZ4, NONE), (LZ4, GZIP)])
def test_another_codec_at_the_end_is_the_one_that_counts(kernel: Kernel, begun: int, ended: int) -> None:
    plain, ahead = filled(kernel, 200_000), filled(kernel, 200_000)
    ahead.work_ahead(begun)
    assert bytes(ahead.finish(ended, **STAMP)) == bytes(plain.finish(ended, **STAMP))


def test_while_another_thread_reads_the_batch_it_can_be_read_but_not_changed() -> None:
    builder, plain = filled(COMPILED, 200_000), filled(COMPILED, 200_000)
    count, size = builder.count, builder.size
    builder.work_ahead(LZ4)
    builder.work_ahead(LZ4)  # a second call changes nothing
    with pytest.raises(BufferError):
        builder.append(None, b"late", NOW)
    with pytest.raises(BufferError):
        builder.clear()
    assert (builder.count, builder.size) == (count, size)
    assert builder.records() == plain.records()
    assert builder.build(LZ4, **STAMP) == plain.build(LZ4, **STAMP)
    assert bytes(builder.finish(LZ4, **STAMP)) == bytes(plain.finish(LZ4, **STAMP))


def test_dropped_builders_and_many_threads_leave_the_others_alone() -> None:
    expected = [bytes(filled(COMPILED, 150_000, seed).finish(LZ4, **STAMP)) for seed in range(3)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(15):
            dropped, kept = filled(COMPILED, 150_000, seed), filled(COMPILED, 150_000, seed)
            dropped.work_ahead(LZ4)
            kept.work_ahead(LZ4)
            del dropped
            if bytes(kept.finish(LZ4, **STAMP)) != expected[seed]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


_FORKING = """
import os, sys
from fencepost.kernel import _batch

def begun():
    builder = _batch.BatchBuilder()
    for number in range(20_000):
        builder.append(None, b"value-%d" % number, number)
    builder.work_ahead(3)
    return builder

expected = bytes(begun().finish(3))
for _ in range(10):
    left = [begun() for _ in range(4)]
    child = os.fork()
    if not child:
        left.clear()
        os._exit(0 if bytes(begun().finish(3)) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(bytes(builder.finish(3)) == expected for builder in left)
print("equal")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr

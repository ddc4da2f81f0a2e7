"""Notebooks: cells that are run again or interrupted, and an event loop that runs already."""

from __future__ import annotations

import contextlib

import pytest

from fencepost import AsyncProducer, Producer, Reader
from tests.support.programs import run, values

pytestmark = pytest.mark.integration


def test_a_cell_that_is_run_again_loses_no_records(address: str, topic: str) -> None:
    """The old producer is garbage when its name is given to the new one."""
    ended = run(f"""
import code, gc
names = {{}}
notebook = code.InteractiveInterpreter(names)
for _ in range(3):
    notebook.runcode('''
import fencepost
producer = fencepost.Producer({address!r}, linger=0.2)
for number in range(100):
    _ = producer.send({topic!r}, "value", partition=0)
''')
    gc.collect()
""")
    assert ended.stderr == ""
    assert values(address, topic) == ["value"] * 300


def test_an_interrupted_cell_leaves_producer_and_reader_usable(address: str, topic: str) -> None:
    ended = run(f"""
import os, signal, threading, time, fencepost
is_slow, waits = threading.Event(), threading.Event()
def serialized(value):
    while is_slow.is_set():
        waits.set()
        time.sleep(0.01)  # on the send thread: `result` and `flush` wait
    return value
producer = fencepost.Producer({address!r}, value_serializer=serialized)
reader = fencepost.Reader({address!r}, {topic!r})
def interrupted(cell):
    is_slow.set()
    waits.clear()
    threading.Thread(target=lambda: (waits.wait(), time.sleep(0.1), os.kill(os.getpid(), signal.SIGINT))).start()
    try:
        cell()
        print("it did not wait")
    except KeyboardInterrupt:
        is_slow.clear()
def read():
    for record in reader:
        if record.value == b"second":
            waits.set()
interrupted(lambda: producer.send({topic!r}, b"first").result())
interrupted(lambda: (producer.send({topic!r}, b"second"), producer.flush()))
producer.flush()
interrupted(read)
producer.send({topic!r}, b"third").result(60)
print(*(record.value.decode() for record in reader.poll(60)))
producer.close()
""")
    assert (ended.stdout, ended.stderr) == ("third\n", "")
    assert values(address, topic) == ["first", "second", "third"]


async def test_a_notebooks_running_loop_takes_both_kinds_of_clients(address: str, topic: str) -> None:
    with Producer(address) as producer:
        producer.send(topic, b"plain", partition=0).result(60)
    async with AsyncProducer(address) as asynchronous:
        await asynchronous.send(topic, b"awaited", partition=0)
    with contextlib.closing(Reader(address, topic, stop="latest")) as reader:
        assert [record.value for record in reader] == [b"plain", b"awaited"]
    assert values(address, topic) == ["plain", "awaited"]

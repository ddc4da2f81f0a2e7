"""A replicated store whose commit log is a partition: one master at any offset, whatever replicas believe (OWN-10).

    fencepost topic create store --set fencepost.writer.group=store-masters
    python examples/replicated_store.py 127.0.0.1:9092 store anna [SESSION]
    python examples/replicated_store.py 127.0.0.1:9092 store bert [SESSION]

Every replica reads the log and applies it. The owner of the log's partition is the master, and only it may write.
Commands come on standard input, one per line: `add KEY NUMBER` (answered with the new value, or `not the master`) and
`get KEY`. `add` depends on the state: the master computes the new value and logs *that*, so two masters would log
values that contradict each other.

A new master first reads the log to its end. Its claim was granted after the old master was fenced, so that end is
final, and the state is complete before the first answer. A replaced master becomes a replica again. A master without
heartbeats for SESSION seconds (3) is replaced.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from contextlib import suppress

import fencepost
from fencepost import Claim, Fenced, Producer, Reader
from fencepost.errors import FencepostError, TimedOut
from fencepost.types import TopicPartition

GROUP = "store-masters"
LOST = "lost"
"""A command: check whether this process is still the master."""


class Store:
    """The state after the log so far, with the position in the log."""

    def __init__(self, servers: str, topic: str) -> None:
        self._reader = Reader(servers, TopicPartition(topic, 0), start="earliest")
        self._servers = servers
        self._topic = topic
        self.values: dict[str, int] = {}

    def follow(self, timeout: float) -> None:
        """Apply new records."""
        with suppress(TimedOut):
            for record in self._reader.poll(timeout) or []:
                change = json.loads(record.value or b"{}")
                self.values[change["key"]] = change["value"]

    def catch_up(self) -> None:
        with fencepost.Admin(self._servers) as admin:
            end = admin.latest(self._topic)[0]
        while self._reader.positions[TopicPartition(self._topic, 0)] < end:
            self.follow(1.0)


def lead(
    store: Store, producer: Producer, claim: Claim, topic: str, name: str, commands: queue.SimpleQueue[str]
) -> None:
    """Be the master until the commands end; raise Fenced when replaced."""
    store.catch_up()
    print(f"{name} is the master", flush=True)
    while command := commands.get():
        producer.check_owned()
        match command.split():
            case ["add", key, number] if is_number(number):
                value = store.values.get(key, 0) + int(number)
                change = json.dumps({"key": key, "value": value, "by": name, "term": claim.token})
                producer.send(topic, change, partition=0).result()  # answered only when it is in the log
                store.values[key] = value
                print(key, value, flush=True)
            case ["get", key]:
                print(key, store.values.get(key, 0), flush=True)
            case _:
                print("?", command, flush=True)


def is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def replicate(
    store: Store, name: str, commands: queue.SimpleQueue[str], granted: queue.SimpleQueue[Claim]
) -> Claim | None:
    """Be a replica until granted the claim, which is returned; None if the commands end."""
    while granted.empty():
        store.follow(0.05)
        with suppress(queue.Empty):
            command = commands.get_nowait()
            if not command:
                return None
            if command == LOST:
                continue
            key = command.split()[-1]
            get = command.startswith("get ")
            print(*([key, store.values.get(key, 0)] if get else [name, "is not the master"]), flush=True)
    return granted.get()


def run(servers: str, topic: str, name: str, session: float = 3.0) -> None:
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(commands,), daemon=True).start()
    while True:
        store = Store(servers, topic)  # rebuilt after a loss: a fenced master may have applied a rejected record
        producer = Producer(servers, linger=0)
        granted: queue.SimpleQueue[Claim] = queue.SimpleQueue()

        def wake(fenced: Fenced) -> None:
            commands.put(LOST)  # wakes a master that waits for commands

        def wait_in_line(producer: Producer = producer, granted: queue.SimpleQueue[Claim] = granted) -> None:
            with suppress(FencepostError):  # the producer is closed if the replica ends first
                granted.put(producer.own(GROUP, [f"{topic}-0"], wait=True, session=session, on_lost=wake))

        threading.Thread(target=wait_in_line, daemon=True).start()
        try:
            claim = replicate(store, name, commands, granted)
            if claim is not None:
                lead(store, producer, claim, topic, name, commands)
            return
        except Fenced:
            print(f"{name} is the master no more", flush=True)
        finally:
            with suppress(FencepostError):
                producer.close(0)


def listen(commands: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        if line.strip():
            commands.put(line.strip())
    commands.put("")


if __name__ == "__main__":
    try:
        run(sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:5]))
    except FencepostError as error:
        sys.exit(f"store: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

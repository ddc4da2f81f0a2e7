"""Active and standby: of several processes on any machines one writes, and the others wait to take over (OWN-10).

    fencepost topic create ticks --set fencepost.writer.group=ticks-writers
    python examples/active_standby.py 127.0.0.1:9092 ticks anna
    python examples/active_standby.py 127.0.0.1:9092 ticks bert

Kill the active one, or only stop it (Ctrl-Z): a moment later the other continues after the last number in the log. Wake
the stopped one (fg): it is fenced, its writes are rejected, and it waits again.
"""

from __future__ import annotations

import sys

import fencepost

PAUSE = 0.1
SESSION = 2.0
"""Seconds without a heartbeat after which the active process is replaced."""


def last_number(servers: str, topic: str) -> int:
    """Read the last number from the log: the claim was granted after the last write of the previous owner."""
    with fencepost.Reader(servers, topic, stop="latest") as reader:
        return max((int((record.value or b"").split()[0]) for record in reader), default=0)


def main(servers: str, topic: str, name: str) -> None:
    for term in fencepost.standby(servers, f"{topic}-writers", [f"{topic}-0"], session=SESSION):
        print(f"{name}: active, token {term.token}", flush=True)
        with term as producer:
            number = last_number(servers, topic)
            while True:
                number += 1
                producer.send(topic, f"{number} {name}", partition=0).result()  # raises Fenced, which ends the term
                term.lost.wait(PAUSE)
                term.check()
        print(f"{name}: fenced, waiting", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except fencepost.FencepostError as error:
        sys.exit(f"{sys.argv[3]}: {error}")
    except KeyboardInterrupt:
        print(f"{sys.argv[3]}: stopped")

"""Active and standby: start it as often as you like, on as many machines; one of them writes, the others wait (OWN-10).

    fencepost topic create ticks --set fencepost.writer.group=ticks-writers
    python examples/active_standby.py 127.0.0.1:9092 ticks anna
    python examples/active_standby.py 127.0.0.1:9092 ticks bert

Kill the active one, or only stop it (Ctrl-Z): the other goes on a moment later, with the number behind the last one in
the log. Wake the stopped one (fg): it is fenced, none of its writes is taken, and it waits in line.
"""

from __future__ import annotations

import sys

import fencepost

PAUSE = 0.1
SESSION = 2.0
"""Seconds of silence after which the active one is replaced."""


def last_number(servers: str, topic: str) -> int:
    """What the log says, not what anybody remembers: the grant came after everything the one before has written."""
    with fencepost.Reader(servers, topic, stop="latest") as reader:
        return max((int((record.value or b"").split()[0]) for record in reader), default=0)


def main(servers: str, topic: str, name: str) -> None:
    for term in fencepost.standby(servers, f"{topic}-writers", [f"{topic}-0"], session=SESSION):
        print(f"{name}: active, token {term.token}", flush=True)
        with term as producer:
            number = last_number(servers, topic)
            while True:
                number += 1
                producer.send(topic, f"{number} {name}", partition=0).result()  # raises Fenced, and the term is over
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

"""A task with a journal: it may be restarted while the first attempt is only paused, and one writer remains (OWN-10).

    fencepost topic create counts --set fencepost.writer.group=journal-writers
    python examples/journal.py 127.0.0.1:9092 counts [TOKEN [STEPS]]

The task counts and journals each step, so that the next attempt resumes there. An attempt claims the journal with the
token that its predecessor printed (none for the first). It takes over from the predecessor at once, dead or alive, and
is refused if there was another owner since. So one of two restarts wins, and an attempt that starts too late is refused
even if there is no owner any more. A generation could not guarantee that, because it starts again at 1 when the owner
is gone. A scheduler stores the newest token, as it stores the number of attempts.

An attempt that was only paused is fenced when it wakes up: its in-flight writes are rejected, and it ends with exit
code 3. An attempt that is refused ends with 4.

Try it in two terminals: start it, press Ctrl-Z, start it in the other with the token that the first one printed, then
`fg` in the first.
"""

from __future__ import annotations

import sys
from itertools import count

from fencepost import Fenced, FencepostError, Producer, Reader, Refused
from fencepost.types import TopicPartition

GROUP = "journal-writers"
NOBODY = 0
"""The token of an attempt without a predecessor."""
FENCED, REFUSED = 3, 4


def restored(servers: str, topic: str) -> int:
    """Read the state from the journal."""
    state = 0
    with Reader(servers, TopicPartition(topic, 0), start="earliest", stop="latest") as journal:
        for record in journal:
            state = int((record.value or b"0").split()[0])
    return state


def run(servers: str, topic: str, replaced: int = NOBODY, steps: int | None = None) -> int:
    try:
        with Producer(servers, linger=0) as producer:
            # Generation 0 takes over from any owner; `after` limits that to the predecessor.
            claim = producer.own(GROUP, [f"{topic}-0"], generation=0, after=replaced)
            state = restored(servers, topic)  # after the claim: others can write nothing more
            print(f"goes on at {state}, token {claim.token}", flush=True)
            for step in count() if steps is None else range(steps):
                state += 1
                producer.send(topic, f"{state} {claim.token}", partition=0)
                if step % 100 == 99:
                    producer.flush()
        print(f"done at {state}", flush=True)
        return 0
    except Refused as refused:
        print(f"late: token {refused.token} was granted since", flush=True)
        return REFUSED
    except Fenced as fenced:
        print(f"replaced: {fenced}", flush=True)
        return FENCED


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])))
    except FencepostError as error:
        sys.exit(f"journal: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

"""A task's journal: restarted elsewhere while the first one is only paused, and still one writer (OWN-10).

    fencepost topic create counts --set fencepost.writer.group=journal-writers
    python examples/journal.py 127.0.0.1:9092 counts [TOKEN [STEPS]]

The task counts, and journals each step, so that whoever comes after it goes on where it was. It claims the journal with
the token of the attempt that it replaces, which that one printed (none for the very first): it takes over from that one
at once, dead or alive, and is refused if anybody was there since. So of two restarts one wins, and an attempt that
starts too late is refused even when nobody is at work any more. A generation could not promise that: it begins again at
1 whenever the owner is gone. A scheduler keeps the newest token as it keeps the number of attempts.

An attempt that was only paused finds itself fenced when it wakes up: nothing that it had under way enters the journal,
and it ends with exit code 3. One that is refused ends with 4.

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
"""The token before the first one."""
FENCED, REFUSED = 3, 4


def restored(servers: str, topic: str) -> int:
    """The state that the journal tells of."""
    state = 0
    with Reader(servers, TopicPartition(topic, 0), start="earliest", stop="latest") as journal:
        for record in journal:
            state = int((record.value or b"0").split()[0])
    return state


def run(servers: str, topic: str, replaced: int = NOBODY, steps: int | None = None) -> int:
    try:
        with Producer(servers, linger=0) as producer:
            # Generation 0 takes it from whoever holds it, and `after` says from whom that may be.
            claim = producer.own(GROUP, [f"{topic}-0"], generation=0, after=replaced)
            state = restored(servers, topic)  # after the claim: what is there now is all there will be of others
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

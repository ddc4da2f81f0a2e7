"""A task's journal: restarted elsewhere while the first one is only paused, and still one writer (OWN-10).

    python examples/journal.py SERVERS TOPIC ATTEMPT [STEPS]

The task counts, and journals each step, so that whoever comes after it goes on where it was. A scheduler that believes
it dead starts it again with the next attempt's number, which is the generation it claims the journal with: a higher
attempt takes over at once, a lower one is refused. A first attempt that was only paused finds itself fenced when it
wakes up: nothing that it had under way enters the journal, and it ends with exit code 3.

Try it in two terminals: start attempt 1, press Ctrl-Z, start attempt 2 in the other, then `fg` in the first.
"""

from __future__ import annotations

import sys
from itertools import count

from fencepost import Fenced, Producer, Reader, Refused
from fencepost.types import TopicPartition

GROUP = "journal-writers"
FENCED, REFUSED = 3, 4


def restored(servers: str, topic: str) -> int:
    """The state that the journal tells of."""
    state = 0
    with Reader(servers, TopicPartition(topic, 0), start="earliest", stop="latest") as journal:
        for record in journal:
            state = int((record.value or b"0").split()[0])
    return state


def run(servers: str, topic: str, attempt: int, steps: int | None = None) -> int:
    try:
        with Producer(servers, linger=0) as producer:
            claim = producer.own(GROUP, [f"{topic}-0"], generation=attempt)
            state = restored(servers, topic)  # after the claim: what is there now is all there will be of others
            print(f"attempt {attempt} goes on at {state}, token {claim.token}", flush=True)
            for step in count() if steps is None else range(steps):
                state += 1
                producer.send(topic, f"{state} {attempt}", partition=0)
                if step % 100 == 99:
                    producer.flush()
        print(f"attempt {attempt} is done at {state}", flush=True)
        return 0
    except Refused as refused:
        print(f"attempt {attempt} is late: attempt {refused.current_generation} is at work", flush=True)
        return REFUSED
    except Fenced as fenced:
        print(f"attempt {attempt} was replaced: {fenced}", flush=True)
        return FENCED


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None))

"""A writer that floods a partition while it owns it: one of several that take over from each other.

Commands come on standard input, answers go to standard output, a line each:

    claim GENERATION   →  owns GENERATION TOKEN        a new connection claims, and floods until it is severed
                          fenced ACKNOWLEDGED          when it was: how many of its records were acknowledged

Every record's value is "TOKEN NUMBER", so that the log tells afterwards who wrote what, and when.
"""

from __future__ import annotations

from tests.support.batches import batch
from tests.support.raw import ConnectionEnded, RawClient
from tests.support.takeover_process import is_spoken_to, obey

OWN = 10_000
WINDOW = 50


def flood(address: str, topic: str, group: str, generation: int) -> None:
    acknowledged = 0
    client = RawClient(address)
    try:
        answer = client.call(
            OWN, 0, group=group, wait_ms=0, resources=[{"name": f"{topic}-0", "generation": generation}]
        )
        if answer.error_code:
            print("refused", answer.resources[0].generation, flush=True)
            return
        [owned] = answer.resources
        print("owns", owned.generation, owned.token, flush=True)
        number = 0
        while True:
            for _ in range(WINDOW):
                client.send_produce(topic, batch([b"%d %d" % (owned.token, number)]))
                number += 1
            for _ in range(WINDOW):
                acknowledged += client.receive_produced().error == 0
            if is_spoken_to():
                return  # told to stop
    except (ConnectionEnded, OSError):
        pass
    finally:
        client.close()
        print("fenced", acknowledged, flush=True)


if __name__ == "__main__":
    obey(flood)

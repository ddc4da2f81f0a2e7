"""A process that owns a partition, and goes on writing when it has lost it, as a careless program may.

Commands come on standard input, answers go to standard output, a line each:

    claim GENERATION   →  owns GENERATION TOKEN
    write COUNT        →  refused COUNT            writes over a new connection that owns nothing, a record at a time
"""

from __future__ import annotations

import sys
from typing import Final

import fencepost
from fencepost.errors import ErrorCode, FencepostError

CLIENT_ID: Final = "late-owner"


def main() -> None:
    address, topic, group = sys.argv[1:4]
    config = {"bootstrap.servers": address, "client.id": CLIENT_ID}
    with fencepost.Producer.from_config(config) as owner:
        for line in sys.stdin:
            word, count = line.split()
            if word == "claim":
                claim = owner.own(group, [f"{topic}-0"], generation=int(count))
                print("owns", claim.generation, claim.token, flush=True)
            else:
                with fencepost.Producer.from_config(config) as late:
                    print("refused", sum(_is_refused(late, topic) for _ in range(int(count))), flush=True)


def _is_refused(producer: fencepost.Producer, topic: str) -> bool:
    try:
        producer.send(topic, b"late", partition=0).result()
    except FencepostError as error:
        return error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return False


if __name__ == "__main__":
    main()

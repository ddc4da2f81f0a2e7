"""The process that does one job: `python -m bench.clients CLIENT KIND JSON`; see `bench.jobs`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys

from bench.jobs import KINDS, Outcome


def main() -> None:
    client, kind, text = sys.argv[1:]
    work = getattr(importlib.import_module(f"bench.clients.{client}"), kind)
    outcome: Outcome = work(KINDS[kind](**json.loads(text)))
    print(json.dumps(dataclasses.asdict(outcome)))


main()

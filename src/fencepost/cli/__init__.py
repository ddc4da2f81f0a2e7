"""The command line: one module per command group, each thin over `fencepost.client` or `fencepost.server`.

A command's module is imported when the command is called, and what the command needs when it runs, so that a short
command answers at once.
"""

from __future__ import annotations

import click

from fencepost._version import __version__
from fencepost.cli.errors import OneLineErrors


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="fencepost %(version)s")
def main() -> None:
    """A partitioned log that is written exactly once, on Kafka's wire protocol.

    \b
    A first look, in two terminals:
      fencepost serve                          a server on 127.0.0.1:9092, data in ./fencepost-data
      fencepost topic create orders -p 3       a topic; then use any Kafka client, or
      seq 1000 | fencepost produce orders      lines into it, each of them once
      fencepost consume orders                 and out again

    Every command but `serve` and `own` works with Apache Kafka too: --servers HOST:PORT,… or FENCEPOST_SERVERS.

    \b
    Exit codes: 0 done, 1 failed (one line on stderr says why), 2 called wrongly,
    75 lost what it owned: somebody else took over, or the server is gone (own), 130 interrupted.
    """


main.add_section("To begin with", "demo", "serve", "doctor", "ping", "completion")
main.add_section("Records", "produce", "consume", "copy")
main.add_section("What is there", "topic", "group", "producers", "transactions", "sink")
main.add_section("One at a time", "own", "owners:own")

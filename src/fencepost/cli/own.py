"""`fencepost own`: run a command while owning something, like flock. `fencepost owners`: who holds what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Final

import click

from fencepost.cli.options import Target, client_command
from fencepost.cli.output import Column, when

FENCED: Final = 75
"""Exit code when somebody else took over (EX_TEMPFAIL: trying again may make sense)."""
_SECONDS_TO_END: Final = 10.0


_COMMAND: Final = "fencepost.cli.own.command"


class WithCommand(click.Command):
    """Keeps what stands behind `--` apart, which click would mix with the arguments before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_COMMAND] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] GROUP RESOURCE... -- COMMAND...")


@click.command(cls=WithCommand)
@click.argument("group")
@click.argument("resources", nargs=-1, required=True, metavar="RESOURCE...")
@click.option(
    "--generation", type=click.IntRange(min=0), help="Take over from an owner that is not above this; 0 resets."
)
@click.option(
    "--wait", type=float, metavar="SECONDS", help="Wait until everything is free; the default, without limit."
)
@click.option("--after", type=int, metavar="TOKEN", help="Only if nobody was there since this token.")
@click.option("--session", type=float, default=10.0, show_default=True, metavar="SECONDS",
              help="Lose it after this long without a sign of life.")  # fmt: skip
@client_command
def own(
    target: Target,
    group: str,
    resources: tuple[str, ...],
    generation: int | None,
    wait: float | None,
    after: int | None,
    session: float,
) -> None:
    """Run COMMAND while owning every RESOURCE in GROUP.

    It is ended when somebody takes over. It finds FENCEPOST_TOKEN and FENCEPOST_GENERATION in its environment; a token
    only ever rises, so another system can refuse what carries an older one. The exit code is the command's, or 75 if it
    was fenced.

    \b
    Examples:
      fencepost own jobs nightly -- ./nightly.sh              wait until it is free, then run
      fencepost own jobs nightly --generation 1 -- ./now.sh   take over from generation 1 at once
    """
    command: list[str] = click.get_current_context().meta.get(_COMMAND, [])
    if not command:
        raise click.UsageError("say what to run behind `--`")
    if generation is not None and wait is not None:
        raise click.UsageError("--generation takes over at once, --wait never does: give one of them")
    from fencepost.client.hold import hold
    from fencepost.core.claim import demand

    forever = 2_000_000.0
    wait = None if generation is not None else forever if wait is None else wait
    try:
        demand(group, resources, generation=generation, wait=wait, after=after, session=session)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if generation is None and sys.stderr.isatty():
        click.echo(
            f"fencepost: waiting for {', '.join(resources)} in {group}; `fencepost owners {group}` says who holds it",
            err=True,
        )
    with hold(
        target.settings(),
        group,
        resources,
        generation=generation,
        wait=wait,
        after=after,
        session=session,
    ) as held:
        environment = {**os.environ, "FENCEPOST_TOKEN": str(held.token), "FENCEPOST_GENERATION": str(held.generation)}
        code = _run(command, environment, held.lost)
    if held.lost.is_set():
        raise Overtaken(f"somebody else owns {', '.join(resources)} in {group} now")
    click.get_current_context().exit(code)


class Overtaken(click.ClickException):
    exit_code = FENCED


class NotThere(click.ClickException):
    exit_code = 127  # as a shell says it


def _run(command: list[str], environment: dict[str, str], lost: threading.Event) -> int:
    """Runs the command; terminates it when what was owned is lost."""
    try:
        child = subprocess.Popen(command, env=environment)
    except FileNotFoundError:
        raise NotThere(f"{command[0]}: no such command") from None
    ended = threading.Event()

    def end_when_lost() -> None:
        while not ended.is_set():
            if lost.wait(0.2):
                child.terminate()
                try:
                    child.wait(_SECONDS_TO_END)
                except subprocess.TimeoutExpired:
                    child.kill()
                return

    watcher = threading.Thread(target=end_when_lost, daemon=True)
    watcher.start()
    try:
        while True:
            try:
                code = child.wait()
                return code if code >= 0 else 128 - code  # ended by a signal: as a shell says it
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)
    finally:
        ended.set()
        watcher.join()


@click.command()
@click.argument("group", required=False)
@client_command
def owners(target: Target, group: str | None) -> None:
    """Show who owns what, and who waits.

    In GROUP, or in all groups.

    \b
    Examples:
      fencepost owners
      fencepost owners orders-writers --json
    """
    with target.admin() as admin:
        found = admin.owners(group)
    columns = [Column("group"), Column("resource"), Column("generation", True), Column("token", True)]
    columns += [Column("since"), Column("from"), Column("client")]
    rows: list[tuple[object, ...]] = [
        (row.group, row.resource, row.generation, row.token, when(row.since_ms), row.address, row.client_id)
        for row in found.owners
    ]
    rows += [
        (row.group, ", ".join(row.resources), "waits", None, None, row.address, row.client_id) for row in found.waiting
    ]
    target.show(found, columns, rows, empty="nothing is owned")

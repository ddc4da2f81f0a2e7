"""`fencepost own` runs a command while owning resources, like flock. `fencepost owners` lists owners. And the option
`--own GROUP` of `produce` and `consume`: own the partitions, and exit when they are lost.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from fencepost.cli.options import ClusterTarget, client_command, client_command_without_json
from fencepost.cli.output import Column, when
from fencepost.errors import Fenced, FencepostError, TimedOut

if TYPE_CHECKING:
    from fencepost.client.admin.results import LastOwner
    from fencepost.client.admin_client import Admin
    from fencepost.client.cluster.settings import ClientSettings
    from fencepost.client.own.claim import OnLost, OwnKeywords
    from fencepost.client.own.hold import Hold
    from fencepost.core.own.claim_request import Refused, Resources
    from fencepost.core.rows import OwnerDescription

_SECONDS_TO_ASK: Final = 5.0
BUSY: Final = 69
"""Exit code when another owner has a resource (EX_UNAVAILABLE); --conflict-exit-code changes it."""
_AT_ONCE: Final = 0.001
"""Wait in seconds of a claim that takes only free resources and does not really wait."""

FENCED: Final = 75
"""Exit code after the ownership is lost: another owner took over, or the server is gone (EX_TEMPFAIL: a retry may
succeed)."""
PRODUCER_SESSION: Final = 10.0
"""Seconds of silence after which a producer loses its partitions; its send thread sends the heartbeats."""

_COMMAND: Final = "fencepost.cli.own.command"


class OwnershipLost(click.ClickException):
    exit_code = FENCED


class WithCommand(click.Command):
    """Separates the words after `--`, which click would mix with the arguments before it."""

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
@click.option("--generation", "generations", multiple=True, metavar="[RESOURCE=]N",
              help="Take over from an owner with at most generation N; 0 resets. One for all or for each.")  # fmt: skip
@click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS",
              help="Wait until everything is free, at most this long; by default without limit.")  # fmt: skip
@click.option("-n", "--no-wait", is_flag=True, help="Do not wait: if a resource is not free, name its owner and exit.")
@click.option("-E", "--conflict-exit-code", "conflict", type=click.IntRange(0, 255), default=BUSY, show_default=True,
              help="Exit code if a resource is not free with --no-wait, or within --wait.")  # fmt: skip
@click.option(
    "--after", type=click.IntRange(min=0), metavar="TOKEN", help="Claim only if this is still the newest token."
)
@click.option("--session", type=click.FloatRange(min=0), default=10.0, show_default=True,
              metavar="SECONDS", help="Lose the resources after this long without a heartbeat.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
              help="Time between SIGTERM and SIGKILL when the command is ended.")  # fmt: skip
@client_command_without_json
def own(
    target: ClusterTarget,
    group: str,
    resources: tuple[str, ...],
    generations: tuple[str, ...],
    wait: float | None,
    no_wait: bool,
    conflict: int,
    after: int | None,
    session: float,
    grace: float,
) -> None:
    """Run COMMAND while owning every RESOURCE in GROUP.

    If another owner takes over, if no heartbeat is answered within --session, or if fencepost is told to stop, the
    command is ended with everything it has started; on a stop the resources become free only after that. The
    environment has FENCEPOST_TOKEN and FENCEPOST_GENERATION of the first RESOURCE, and all of them as JSON in
    FENCEPOST_TOKENS and FENCEPOST_GENERATIONS. Tokens only rise, so other systems can reject a request with an older
    one. The exit code is the command's, or 75 if a resource was lost.

    \b
    Examples:
      fencepost own jobs nightly -- ./nightly.sh              wait until it is free, then run
      fencepost own -n jobs nightly -- ./nightly.sh           or end at once with exit code 69
      fencepost own jobs nightly --generation 1 -- ./now.sh   take over from generation 1 at once
    """
    command: list[str] = click.get_current_context().meta.get(_COMMAND, [])
    if not command:
        raise click.UsageError("give the command to run after `--`")
    if generations and wait is not None:
        raise click.UsageError("--generation takes over at once and --wait never does: give only one of them")
    if no_wait and (generations or wait):
        raise click.UsageError("--no-wait excludes --generation and --wait")
    from fencepost.cli.supervised import Supervised
    from fencepost.client.own.hold import hold
    from fencepost.core.own.claim_request import MAX_WAIT_SECONDS, Refused, check_claim

    patience = 0.0 if no_wait else MAX_WAIT_SECONDS if wait is None else min(wait, MAX_WAIT_SECONDS)
    at_once = None if generations else _AT_ONCE
    session = min(session, MAX_WAIT_SECONDS)
    claimed = _with_generations(resources, generations)
    try:
        check_claim(group, claimed, wait=at_once, after=after, session=session)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings = target.settings()

    def claim(wait: float | None) -> Hold:
        return hold(settings, group, claimed, wait=wait, after=after, session=session)

    try:
        held = claim(at_once)
    except Refused as refused:
        if after is not None and any(row.token > after for row in refused.rows):
            raise _outdated(refused, after) from None
        holders = _holders(settings, group, resources)
        raise FencepostError(f"{refused}; {holders}" if holders else str(refused)) from None
    except TimedOut:
        if (holders := _holders(settings, group, resources)) is None and not patience:
            raise
        if not patience:
            raise _busy(f"busy: {holders}", conflict) from None
        click.echo(f"fencepost: waiting: {holders or ', '.join(resources)}", err=True)
        try:
            held = claim(patience)
        except TimedOut:
            holders = _holders(settings, group, resources)
            raise _busy(f"busy for {patience:g} s: {holders or ', '.join(resources)}", conflict) from None
    with held:
        environment = {
            **os.environ,
            "FENCEPOST_TOKEN": str(held.token),
            "FENCEPOST_GENERATION": str(held.generation),
            "FENCEPOST_TOKENS": json.dumps(held.tokens),
            "FENCEPOST_GENERATIONS": json.dumps(held.generations),
        }
        run = Supervised(command, environment, grace=grace, lease_end=lambda: held.lease.end)
        held.on_beat = run.alive
        code = run.run(held.lost)
    if run.stopped_by is not None:
        click.echo(f"fencepost: {run.stopped_by.name}: the command was ended and its resources are free", err=True)
        code = 128 + run.stopped_by
    elif held.lost.is_set():
        raise OwnershipLost(_what_became_of(settings, held))
    click.get_current_context().exit(code)


def _with_generations(resources: tuple[str, ...], given: tuple[str, ...]) -> Resources:
    """Parse `--generation N` and `--generation RESOURCE=N`; return the names, or each with its generation."""
    if not given:
        return resources
    found: dict[str, int] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not number.isascii() or not number.isdigit():
            raise click.BadParameter(f"{text!r} is neither N nor RESOURCE=N", param_hint="--generation")
        if name and name not in resources:
            raise click.BadParameter(f"{name!r} is not one of the resources", param_hint="--generation")
        for each in [name] if name else resources:
            if found.setdefault(each, int(number)) != int(number):
                raise click.BadParameter(f"two different generations for {each!r}", param_hint="--generation")
    if twice := next((name for at, name in enumerate(resources) if name in resources[:at]), None):
        raise click.UsageError(f"resource {twice!r} is named more than once")
    if missing := [name for name in resources if name not in found]:
        raise click.BadParameter(f"no generation for {', '.join(missing)}", param_hint="--generation")
    return {name: found[name] for name in resources}


def _outdated(refused: Refused, after: int) -> click.ClickException:
    """Return the error for an `--after` that is not the newest token any more."""
    name, _, token = next(row for row in refused.rows if row.token > after)
    return click.ClickException(
        f"{name} in {refused.group} has had another owner since token {after}: its newest token is {token}"
    )


def _what_became_of(settings: ClientSettings, held: Hold) -> str:
    """Ask the server why the resources were lost: the hold only knows that its connection ended."""
    names = ", ".join(held.rows)
    with _quick_admin(settings) as admin:
        try:
            last = admin.last_owners(held.group, list(held.rows))
            present = admin.owners(held.group).owners
        except FencepostError as error:
            return f"{names} in {held.group} is lost with the connection to the server: {error}"
    for owner in present:
        if owner.resource in held.rows and owner.token != held.tokens[owner.resource]:
            return f"somebody else owns {owner.resource} in {held.group} now: {_who(owner)}"
    for name, row in held.rows.items():
        if name in last and last[name].token > row.token:
            return f"somebody else took over {name} in {held.group} and has ended since: {_who(last[name])}"
    silent = f", as after {held.session:g} s of silence (the session)" if held.session else ""
    return f"{names} in {held.group} is lost: the server has closed the connection{silent}; nobody owns it now"


def _quick_admin(settings: ClientSettings) -> Admin:
    from fencepost.client.admin_client import Admin

    patience = min(settings.request_timeout, _SECONDS_TO_ASK)
    return Admin(replace(settings, request_timeout=patience, connect_timeout=patience))


def _holders(settings: ClientSettings, group: str, resources: tuple[str, ...]) -> str | None:
    """Describe the owners and waiting claims; None if there are none, or the server does not answer."""
    with _quick_admin(settings) as admin, suppress(FencepostError):
        found = admin.owners(group)
        holders = [row for row in found.owners if row.resource in resources]
        held = [f"{row.resource} in {group} is held by {_who(row)}" for row in holders]
        line = [row for row in found.waiting if set(row.resources) & set(resources)]
        waiting = [f"{len(line)} in line before"] if line else []
        return "; ".join([*held[:3], *waiting]) or None
    return None


def _who(row: OwnerDescription | LastOwner) -> str:
    since = f" since {when(row.since_ms)}" if row.since_ms >= 0 else ""
    return " at ".join(word for word in (row.client_id, row.address) if word) + since


class Busy(click.ClickException):
    """Another owner has a resource."""


def _busy(message: str, exit_code: int) -> Busy:
    busy = Busy(message)
    busy.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance
    return busy


@click.command()
@click.argument("group", required=False)
@client_command
def owners(target: ClusterTarget, group: str | None) -> None:
    """List owners and waiting claims, in GROUP or in all groups.

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


# --- the option of produce and consume ---


def own_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--own GROUP` and `--generation N`."""
    generation = click.option(
        "--generation",
        type=click.IntRange(min=0),
        help="With --own: do not wait, take over from an owner with at most this generation; 0 resets.",
    )
    own = click.option(
        "--own", "owned_in", metavar="GROUP", help="Own the partitions in GROUP first; wait until they are free."
    )
    return own(generation(command))


def how_to_own(owned_in: str | None, generation: int | None, session: float = 0.0) -> OwnKeywords:
    if generation is not None and owned_in is None:
        raise click.UsageError("--generation needs --own GROUP")
    if generation is None:
        return {"wait": True, "session": session}
    return {"generation": generation, "session": session}


def partitions_of(target: ClusterTarget, topic: str, only: Sequence[int] = ()) -> list[str]:
    """Return the resources: all partitions of the topic, or `only` these."""
    with target.admin() as admin:
        there = [found.partition for found in admin.describe_topic(topic).partitions]
    if strange := [str(index) for index in only if index not in there]:
        raise click.UsageError(f"{topic} has no partition {', '.join(strange)}")
    return [f"{topic}-{index}" for index in only or there]


@contextmanager
def woken_when_lost() -> Iterator[OnLost]:
    """Yield a callback for the loss. It raises Fenced on the main thread, even while that reads standard input."""
    lost: list[Fenced] = []

    def raise_it(number: int, frame: object) -> None:
        if lost:
            raise lost.pop()

    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        yield lost.append  # the next record raises it
        return
    before = signal.signal(signal.SIGUSR1, raise_it)
    # Guards `is_over`: a signal after the end would find no handler of ours, and end the process.
    lock, is_over = threading.Lock(), False

    def wake(fenced: Fenced) -> None:
        with lock:
            if not is_over:
                lost.append(fenced)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    try:
        yield wake
    finally:
        try:
            with lock:
                is_over = True
            lost.clear()
        finally:
            signal.signal(signal.SIGUSR1, before)


@contextmanager
def told_when_lost(owned_in: str | None) -> Iterator[None]:
    """Turn Fenced into OwnershipLost, which has its own exit code."""
    try:
        yield
    except Fenced as fenced:
        if owned_in is None:
            raise
        raise OwnershipLost(str(fenced)) from fenced

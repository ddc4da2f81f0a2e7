"""`fencepost doctor`: checks of the installation and of the server, each with advice where it fails: also about
logins and permissions, what is missing and who can grant it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

from fencepost.cli.acl import TYPES, operation_named, resource_type
from fencepost.cli.errors import DENIALS
from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column
from fencepost.errors import ErrorCode, FencepostError, TlsRefused

if TYPE_CHECKING:
    from fencepost.client.admin_client import Admin
    from fencepost.client.cluster.settings import ClientSettings
    from fencepost.core.security.acls import Acl, Operation, ResourceType

_PACKAGES: Final = (
    ("kio", "the protocol's messages", None),
    ("uvloop", "a faster event loop for the server", "pip install uvloop"),
    ("pyarrow", "send_arrow and reader.arrow()", "pip install 'fencepost[arrow]'"),
    ("pyspark", "the Spark source and sink, copy", "pip install 'fencepost[spark]'"),
    ("grpcio", "Spark Connect and spark-pipelines", "pip install 'fencepost[spark]'"),
    ("grpcio-status", "Spark Connect and spark-pipelines", "pip install 'fencepost[spark]'"),
    ("pyyaml", "spark-pipelines", "pip install 'fencepost[spark]'"),
    ("confluent-kafka", "an independent count in the demo", "pip install confluent-kafka"),
)
"""Name, purpose, and how to install it."""


class CheckResult(NamedTuple):
    what: str
    state: Literal["ok", "absent", "slow", "weak", "failed"]
    detail: str
    todo: str | None = None
    """Advice; None if there is nothing to do."""


@click.command()
@click.option(
    "--may",
    "questions",
    type=(str, click.Choice(TYPES), str),
    multiple=True,
    metavar="OPERATION TYPE NAME",
    help="Check a permission, such as: WRITE topic orders; repeatable.",
)
@client_command
def doctor(target: ClusterTarget, questions: tuple[tuple[str, str, str], ...]) -> None:
    """Check the installation, the server, and your permissions.

    One check is the classic listener trap of Kafka: clients connect to the addresses that the server advertises, not to
    the one they dialled. "absent": only some features need it; "slow": it works, but slowly; "weak": it works until a
    broker fails. Exits with 1 if a check failed. For a failed login, and for each permission that --may names and that
    is missing, it says what to do and who can do it.

    \b
    Examples:
      fencepost doctor
      fencepost doctor --may WRITE topic orders --may READ group billing
      fencepost doctor --servers kafka.example.com:9092 --json
    """
    findings = [*_installation(), *_java(), *_connection(target.settings(), questions)]
    rows = ((finding.what, finding.state, finding.detail) for finding in findings)
    target.show(findings, [Column("check"), Column("state"), Column("detail")], rows, empty="nothing to check")
    todos = [finding for finding in findings if finding.todo is not None]
    if todos and not target.as_json:
        click.echo("\nTo do:")
        for finding in todos:
            click.echo(f"  {finding.what}: {finding.todo}")
    failed = [finding.what for finding in findings if finding.state == "failed"]
    if failed:
        checks = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        raise FencepostError(f"{checks} failed ({', '.join(failed)}); the details are above")


def _installation() -> Iterator[CheckResult]:
    import importlib.metadata

    from fencepost import kernel
    from fencepost._version import __version__

    yield CheckResult("fencepost", "ok", __version__)
    yield CheckResult("python", "ok", f"{platform.python_version()}, {platform.platform(terse=True)}")
    if kernel.IMPLEMENTATION == "cython":
        yield CheckResult("kernel", "ok", "compiled")
    else:
        again = "install a C compiler (Debian: gcc), then: pip install --force-reinstall --no-cache-dir fencepost"
        yield CheckResult("kernel", "slow", "pure Python: correct, but many times slower", again)
    for package, purpose, todo in _PACKAGES:
        try:
            yield CheckResult(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield CheckResult(
                package, "slow" if package == "uvloop" else "absent", f"not installed; needed for {purpose}", todo
            )


def _java() -> Iterator[CheckResult]:
    from fencepost.spark.workers import JAVA_ADVICE, find_java

    found = find_java()
    if found is None:
        yield CheckResult("java", "absent", "no working Java found; needed for Spark", JAVA_ADVICE)
    elif found.new_enough:
        yield CheckResult("java", "ok", f"{found.version}, {found.path}")
    else:
        yield CheckResult("java", "absent", f"{found.version}, {found.path}: too old for Spark", JAVA_ADVICE)


def _connection(settings: ClientSettings, questions: Iterable[tuple[str, str, str]]) -> Iterator[CheckResult]:
    from fencepost.client.admin_client import Admin

    with Admin(settings) as admin:
        try:
            pong = admin.ping()
            cluster = admin.cluster()
            offered = [*_offered(admin), *_replication(admin)]
        except FencepostError as error:
            # Without advice the message says what to do.
            yield CheckResult("server", "failed", str(error), advice_on_login(settings, error))
            return
        for operation, kind, name in questions:
            may, detail, todo = why_not(admin, operation, kind, name)
            what = f"{operation.upper()} {kind}" + ("" if kind == "cluster" else f" {name}")
            offered.append(CheckResult(what, "ok" if may else "failed", detail, todo))
    answers = f"{pong.address} answers in {pong.milliseconds:.2f} ms, {pong.apis} APIs, cluster {cluster.cluster_id}"
    yield CheckResult("server", "ok", answers)
    yield from offered
    for broker in cluster.brokers:
        yield _broker(settings, broker.id, broker.host, broker.port)


def _offered(admin: Admin) -> Iterator[CheckResult]:
    """Check by the server's ApiVersions response, without writing anything."""
    from fencepost.wire.apis import Key

    needed = (Key.INIT_PRODUCER_ID, Key.ADD_PARTITIONS_TO_TXN, Key.END_TXN)
    missing = [key.name for key in needed if not admin.offers(key)]
    if missing:
        detail = f"the server does not offer {', '.join(missing)}"
        yield CheckResult(
            "transactions", "failed", detail, "the Spark sink needs them: Kafka 3.6 or newer, or `fencepost serve`"
        )
    else:
        yield CheckResult("transactions", "ok", "offered")
    if admin.offers(Key.OWN):
        yield CheckResult("own", "ok", "offered by the server (a fencepost server)")
    elif missing:
        yield CheckResult("own", "absent", "needs a fencepost server, or transactions to build it from")
    else:
        yield CheckResult("own", "ok", "built by the clients from transactions (not a fencepost server)")


def _replication(admin: Admin) -> Iterator[CheckResult]:
    """Check the topics in which owners and sinks keep their state."""
    from fencepost.client.admin.lasting import weak_topics
    from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX as STAGES
    from fencepost.client.own.kafka_topic import TOPIC_PREFIX as OWNERS
    from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX as SINKS

    names = [topic.name for topic in admin.topics(internal=True) if topic.name.startswith((OWNERS, SINKS, STAGES))]
    weak = list(weak_topics(admin, names))
    for topic, why in weak:
        yield CheckResult(topic, "weak", why, "add replicas, so that it survives a broker: docs/moving-to-kafka.md")
    if names and not weak:
        yield CheckResult("replication", "ok", f"{len(names)} topics of owners and sinks survive the loss of a broker")


def _broker(settings: ClientSettings, number: int, host: str, port: int) -> CheckResult:
    from dataclasses import replace

    from fencepost.client.admin_client import Admin
    from fencepost.client.cluster.addresses import Address

    address = Address(host, port)
    with Admin(replace(settings, servers=(address,))) as admin:
        try:
            admin.ping()
        except FencepostError as error:
            detail = f"advertised as {address}, which cannot be reached from here: {error}"
            todo = "advertise an address that clients can reach (fencepost serve --advertise HOST:PORT)"
            return CheckResult(f"broker {number}", "failed", detail, todo)
    return CheckResult(f"broker {number}", "ok", f"advertised as {address}, reached")


_GRANTERS: Final = "a super user, or a principal with ALTER on the cluster, can"


def principal_of(settings: ClientSettings) -> str | None:
    """Return who the client is for the server, as far as the client knows."""
    sasl, tls = settings.security.sasl, settings.security.tls
    if sasl is not None:
        return f"User:{sasl.username}" if sasl.username else None
    if tls is not None and tls.certificate_file is not None:
        return None  # the server's rules make it from the certificate's subject
    return "User:ANONYMOUS"


def advice_on_login(settings: ClientSettings, error: FencepostError) -> str | None:
    """Return what to do about a login that failed; None if the error is about something else."""
    sasl = settings.security.sasl
    if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED and sasl is not None:
        if sasl.username is None:
            return (
                "the server rejects the token: issuer, audience, signature and time must be those that its [oauth] "
                "settings name; the server's log says which one is wrong"
            )
        return (
            f"check sasl.username ({sasl.username}) and sasl.password; {_GRANTERS} set the password anew: "
            f"fencepost user add {sasl.username}"
        )
    if error.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM and sasl is not None:
        return (
            f"set sasl.mechanism to one that the listener takes, or let the server's administrator add "
            f"{sasl.mechanism!r} to the listener's mechanisms"
        )
    if error.code is ErrorCode.ILLEGAL_SASL_STATE:
        return "the listener takes no logins: set security.protocol to SSL or PLAINTEXT, or use another address"
    if isinstance(error, TlsRefused):
        return (
            "check that ssl.ca.location names the authority of the server's certificate, that the certificate is for "
            "this host, and that ssl.certificate.location names a certificate that the server's client_ca accepts"
        )
    return None


def why_not(admin: Admin, operation_text: str, kind_text: str, name: str) -> tuple[bool, str, str | None]:
    """Return whether the client may perform the operation, a sentence about it, and what to do."""
    operation, kind = operation_named(operation_text), resource_type(kind_text)
    who = principal_of(admin.settings)
    principal = who or "the client's principal"
    what = f"{operation.name} the cluster" if kind_text == "cluster" else f"{operation.name} {kind_text} {name}"
    try:
        if operation in admin.permitted(kind, name):
            return True, f"{principal} may {what}", None
    except FencepostError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            detail = f"topic {name} does not exist, so nothing is known about its permissions"
            return False, detail, f"create it: fencepost topic create {name}"
        if error.code not in DENIALS:
            raise
    detail = f"{principal} may not {what}"
    denial = _denial(admin, who, operation, kind, name)
    if denial is not None:
        host = "" if denial.host == "*" else f" --host {denial.host}"
        prefixed = " --prefixed" if denial.pattern_type.name == "PREFIXED" else ""
        command = f"fencepost acl remove {denial.principal} {denial.operation.name} {kind_text} {_quoted(denial.name)}"
        return False, f"{detail}: an ACL denies it", f"{_GRANTERS} remove it: {command} --deny{prefixed}{host}"
    command = f"fencepost acl add {who or 'User:NAME'} {operation.name} {kind_text}"
    return False, detail, f"{_GRANTERS} grant it: {command}" + ("" if kind_text == "cluster" else f" {_quoted(name)}")


def _denial(admin: Admin, who: str | None, operation: Operation, kind: ResourceType, name: str) -> Acl | None:
    """Return an ACL that denies the operation, if the client may see the ACLs."""
    from fencepost.core.security.acls import EVERYONE, AclFilter, PatternType, Permission
    from fencepost.core.security.acls import Operation as Operations

    wanted = AclFilter(kind, PatternType.MATCH, name, permission=Permission.DENY)
    try:
        found = admin.acls(wanted)
    except FencepostError:
        return None
    for each in found:
        if each.principal in (who, EVERYONE) and each.operation in (operation, Operations.ALL):
            return each
    return None


def _quoted(name: str) -> str:
    import shlex

    return shlex.quote(name)

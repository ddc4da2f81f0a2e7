"""The doctor's advice about logins and permissions: what is missing, and who can grant it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.cli.acl import operation_named, resource_type
from fencepost.errors import ErrorCode, FencepostError, TlsRefused

if TYPE_CHECKING:
    from fencepost.client.admin import Admin
    from fencepost.client.cluster.settings import ClientSettings
    from fencepost.core.security.acls import Acl, Operation, ResourceType

_GRANTERS: Final = "a super user, or a principal with ALTER on the cluster, can"
_DENIALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


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
        if error.code not in _DENIALS:
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

"""Users, ACLs, quotas and the audit trail. Read-only: `fencepost user`, `acl` and `quota` change them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from fencepost.core.security.access import CLUSTER_DESCRIBE, TOPIC_READ
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel import decode_batch
from fencepost.log.partition import PartitionLog
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.paging import Page
from fencepost.server.views.security import list_acls, list_quotas, list_users
from fencepost.server.views.sinks import batches_between
from fencepost.types import Offset
from fencepost.wire.apis import Key

MOST_LINES: Final = 100
_COMMON: Final = ("time", "event", "outcome", "principal", "address", "resource_type", "resource")
_HOW: Final = "The settings file or topic in the section [audit] of the server's configuration switch it on."


class AuditRow(NamedTuple):
    time: str
    event: str
    outcome: str
    principal: str
    address: str
    resource: str
    more: str
    """The other fields, as JSON; or the whole line, if it is no event."""


def audit_row(line: bytes) -> AuditRow:
    """Return a line of the audit log as a row of the page. Anything may be in a file that others can write."""
    text = line.decode(errors="replace")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return AuditRow("", "", "", "", "", "", text)
    time, event, outcome, principal, address, kind, name = (_word(fields.pop(each, None)) for each in _COMMON)
    more = {key: value for key, value in fields.items() if value is not None}
    others = _word(json.dumps(more, ensure_ascii=False)) if more else ""
    return AuditRow(time, event, outcome, principal, address, f"{kind} {name}".strip(), others)


def _word(value: Any) -> str:
    # Half a character of UTF-16, which JSON may contain, cannot be sent to a browser.
    return "" if value is None else str(value).encode(errors="replace").decode()


async def _read_list(here: str, rows: Callable[[Visit], Awaitable[Page[Any]]], visit: Visit) -> Values:
    values = _frame(visit, here)
    try:
        page = await rows(visit)
    except ServerError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        who, need = visit.caller.session.principal, CLUSTER_DESCRIBE.operation.name
        return {
            **values,
            "refused": f"{who} may not {need} the cluster, so this list is not shown. A super user can grant it.",
        }
    return {**values, "rows": page.items, "next_cursor": page.next_cursor}


read_users = partial(_read_list, "users", lambda visit: list_users(visit.caller, visit.place, visit.find))
read_acls = partial(_read_list, "acls", lambda visit: list_acls(visit.caller, visit.place, visit.find))
read_quotas = partial(_read_list, "quotas", lambda visit: list_quotas(visit.caller, visit.place))


async def read_audit(visit: Visit) -> Values:
    broker = visit.broker
    topic, path = broker.config.audit_topic, broker.config.audit_file
    values: dict[str, Any] = {
        **_frame(visit, "audit"), "searched": 0, "found": 0, "is_whole": True, "place": "",
    }  # fmt: skip
    if topic is None and path is None:
        return {**values, "how": _HOW}
    if not _may_audit(visit, topic):
        return {
            **values,
            "refused": f"{visit.caller.session.principal} may not read the audit trail: only super users may.",
        }
    try:
        if topic is not None:
            log = await broker.partition(topic, 0).open()
            lines = await visit.caller.in_thread(partial(last_of_topic, log))
        else:
            assert path is not None
            lines = await visit.caller.in_thread(partial(last_of_file, path))
    except (FencepostError, OSError) as error:
        return {**values, "refused": f"The audit log cannot be read: {error}"}
    found = await visit.caller.in_thread(partial(matching, lines, visit.find))
    return {
        **values,
        "rows": found[:MOST_LINES],
        "found": len(found),
        "searched": len(lines.lines),
        "is_whole": lines.is_whole,
        "place": f"topic {topic}" if topic is not None else f"file {path}",
    }


def matching(lines: AuditLines, find: str) -> list[AuditRow]:
    """Return the rows that show `find`, in capitals or not. In the lines themselves a letter with an accent is an
    escape sequence. For a thread: it decodes every line."""
    wanted = find.lower()
    return [row for row in map(audit_row, lines.lines) if wanted in "\n".join(row).lower()]


def _may_audit(visit: Visit, topic: str | None) -> bool:
    """Tell if the user may read the topic; the file is for super users. Without authorization everyone is one."""
    authorizer = visit.broker.authorizer
    if not authorizer.enabled:
        return True
    if topic is not None:
        return visit.caller.request(Key.FETCH).sees(TOPIC_READ, topic)
    return str(visit.caller.session.principal) in authorizer.table.super_users


def _frame(visit: Visit, here: str) -> dict[str, Any]:
    """Return what all pages of security have."""
    return {
        "here": here,
        "is_on": visit.broker.authorizer.enabled,
        "refused": "",
        "how": "",
        "rows": [],
        "next_cursor": None,
    }


PAGES: Final = (
    ConsolePage("/security", "Security", read_users, "", "security_users.html", "Name contains", in_navigation=True),
    ConsolePage("/security/acls", "ACLs", read_acls, "", "security_acls.html", "Principal or resource contains"),
    ConsolePage("/security/quotas", "Quotas", read_quotas, "", "security_quotas.html"),
    ConsolePage(
        "/security/audit", "Audit trail", read_audit, "security_audit_live.html", "security_frame.html", "Line contains"
    ),
)


_FILE_BYTES: Final = 128 * 1024
_RECORDS: Final = 400


class AuditLines(NamedTuple):
    lines: list[bytes]
    """The newest first."""
    is_whole: bool
    """There are no older ones in this file or topic."""


def last_of_file(path: Path) -> AuditLines:
    """Return the last lines of the file that is being written. Raise OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _FILE_BYTES)
        file.seek(start)
        data = file.read(_FILE_BYTES)
    lines = data.split(b"\n")
    if start:
        del lines[0]  # its beginning is missing
    return AuditLines([line for line in reversed(lines) if line], start == 0)


def last_of_topic(log: PartitionLog) -> AuditLines:
    """Return the last records. Raise FencepostError."""
    stop = log.high_watermark
    start = max(log.start_offset, Offset(stop - _RECORDS))
    lines = [
        bytes(record.value)
        for _, data, at in batches_between(log, start, stop)
        for record in decode_batch(data, at)
        if record.value is not None
    ]
    return AuditLines(lines[::-1][:_RECORDS], start <= log.start_offset)

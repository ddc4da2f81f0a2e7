"""The events of the server's log: a stable name for every line, and names for the values in it.

`serve --log-format json` writes them, so that programs need not read sentences. The key is the text of the log call. A
test finds every call in the source, and fails if it is not in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class LogEvent(NamedTuple):
    name: str
    fields: tuple[str, ...] = ()
    """Names for the arguments of the text, in order. An empty name leaves an argument out: it is only wording."""


OTHER_EVENT: Final = LogEvent("other")
"""A line of a library."""
DROPPED: Final = "log.dropped"
_MAX_VALUE_CHARACTERS: Final = 1000
"""Characters of a value: clients choose some of them, such as the user of a login that fails."""

EVENTS: Final[Mapping[str, LogEvent]] = {
    # the server
    "fencepost %s has started: process %d, data in %s": LogEvent("server.started", ("version", "process", "data")),
    "listening on %s (%s)": LogEvent("server.listening", ("address", "listener")),
    "the server has stopped": LogEvent("server.stopped"),
    # configuration
    "the new configuration is wrong, the old one stays: %s": LogEvent("config.rejected", ("reason",)),
    "configuration reloaded: %s": LogEvent("config.reloaded", ("changes",)),
    "these settings need a restart: %s": LogEvent("config.needs_restart", ("settings",)),
    "listener %s uses changed certificates": LogEvent("certificates.changed", ("listener",)),
    "%s: health and metrics are off; --http HOST:PORT chooses another port, --no-http none": LogEvent(
        "http.off", ("reason",)
    ),
    "cannot read the keys in oauth.jwks=%s, the known ones stay: %s": LogEvent("oauth.keys_failed", ("jwks", "reason")),
    # connections
    "closing %s: %s": LogEvent("connection.closed", ("peer", "reason")),
    "closing %s: TLS handshake on listener %s failed: %s": LogEvent("tls.failed", ("peer", "listener", "reason")),
    "closing %s: idle for %.0f s": LogEvent("connection.idle", ("peer", "seconds")),
    "closing %s: too slow while other connections wait for memory": LogEvent("connection.slow", ("peer",)),
    "closing %s: a request failed unexpectedly": LogEvent("request.failed", ("peer",)),
    "closing %s: %s failed unexpectedly": LogEvent("request.failed", ("peer", "api")),
    "closing %s: cannot encode the answer to %s": LogEvent("answer.failed", ("peer", "api")),
    "login failed: %.255r from %s on listener %s by %s: %s": LogEvent(
        "login.failed", ("user", "peer", "listener", "mechanism", "reason")
    ),
    # owners, groups, transactions
    "severed the owner %s (%s): %s (%s) takes over %.200s in group %s": LogEvent(
        "owner.replaced", ("peer", "client_id", "new_peer", "new_client_id", "resources", "group")
    ),
    "severed the owner %s (%s): silent for more than its session of %d ms": LogEvent(
        "owner.silent", ("peer", "client_id", "session_ms")
    ),
    "removed member %s of group %s: its session timed out": LogEvent("group.member_expired", ("member", "group")),
    "group %s uses the classic protocol: its last member of the new one has left": LogEvent(
        "group.downgraded", ("group",)
    ),
    "group %s uses the new protocol: a member of it has joined": LogEvent("group.upgraded", ("group",)),
    "unknown transactional id %r: its producer's pid %d is replaced": LogEvent(
        "transaction.pid_replaced", ("transactional_id", "pid")
    ),
    "aborting %s: open for more than %d ms": LogEvent("transaction.timed_out", ("transactional_id", "timeout_ms")),
    "cannot abort the transaction of a former owner; the next claim or its timeout will: %s": LogEvent(
        "transaction.abort_failed", ("reason",)
    ),
    "cannot store the end of a transaction; the next restart will: %s": LogEvent(
        "transaction.store_failed", ("reason",)
    ),
    "cannot write the marker of transaction %s to %s: %s": LogEvent(
        "transaction.marker_failed", ("transactional_id", "partition", "reason")
    ),
    "rejected transactional id %r: there are already max_transactional_ids": LogEvent(
        "transaction.too_many_ids", ("transactional_id",)
    ),
    "%s; rejected": LogEvent("batch.rejected", ("reason",)),
    # background tasks
    "%s%s failed and will be retried: %s%s": LogEvent("chore.failed", ("subject", "chore", "reason", "")),
    "%s%s succeeded after %d failures": LogEvent("chore.recovered", ("subject", "chore", "failures")),
    "background task %r failed": LogEvent("task.failed", ("task",)),
    "the embedded server has stopped because of an error": LogEvent("server.failed"),
    "cannot send %s to systemd: %s": LogEvent("systemd.unreachable", ("notice", "reason")),
    "cannot open %s (%s): stop the server to back it up": LogEvent("backup.unavailable", ("file", "reason")),
    "a backup gave no sign of life for %s s: its files are released": LogEvent("backup.hung", ("seconds",)),
    "%s: retention removed %d segments; it now starts at offset %d": LogEvent(
        "retention.removed", ("partition", "segments", "start_offset")
    ),
    # disk
    "the process may open no more files (%s), of which %d are logs: raise its limit (ulimit -n), or lower "
    "max_connections": LogEvent("files.exhausted", ("reason", "logs")),
    "cannot open %s: %s": LogEvent("log.open_failed", ("partition", "reason")),
    "cannot close a log cleanly; the next start will recover it: %s": LogEvent("log.close_failed", ("reason",)),
    "cannot sync %s: %s; it accepts no more batches until it is reopened": LogEvent(
        "log.sync_failed", ("directory", "reason")
    ),
    "cannot cut off torn bytes of %s: %s": LogEvent("log.torn", ("file", "reason")),
    "%s: cut off %d bytes after offset %d that are not a whole batch": LogEvent(
        "recovery.cut", ("file", "bytes", "end_offset")
    ),
    "%s: removed, because the segment before it is damaged": LogEvent("recovery.segment_removed", ("file",)),
    "%s: ignoring the snapshot at offset %d, because the log is shorter": LogEvent(
        "recovery.snapshot_ignored", ("directory", "offset")
    ),
    "cannot read the snapshot %s: %s": LogEvent("snapshot.unreadable", ("file", "reason")),
    "the snapshot %s is damaged; trying an older one": LogEvent("snapshot.damaged", ("file",)),
    "cannot save a snapshot of %s: %s; a restart will replay more": LogEvent(
        "snapshot.failed", ("partition", "reason")
    ),
    "cannot remove %s: %s": LogEvent("file.not_removed", ("file", "reason")),
    "removing %s: its topic was deleted": LogEvent("folder.removing", ("folder",)),
    "%s belongs to no topic; the server leaves it alone": LogEvent("folder.unknown", ("folder",)),
    "cannot measure the free space in %s: %s": LogEvent("disk.unmeasured", ("directory", "reason")),
    "cannot create %s: %s": LogEvent("disk.no_reserve", ("file", "reason")),
    "the disk is full: deleted %s, so that cleanup has room to start": LogEvent("disk.full", ("file",)),
    "the disk is nearly full: %s": LogEvent("disk.low", ("reason",)),
    "new records are accepted again; %d batches were rejected": LogEvent("disk.room", ("rejected",)),
    # metadata and audit log
    "cannot open %s (%s): trying again in exclusive mode": LogEvent("store.open_failed", ("file", "reason")),
    "cannot commit %d changes to the metadata store": LogEvent("store.commit_failed", ("changes",)),
    "cannot apply a change to the metadata store": LogEvent("store.change_failed"),
    "the last lines of the audit log could not be written": LogEvent("audit.unwritten"),
    "%d lines of the audit log may be lost: %s": LogEvent("audit.lost", ("lines", "reason")),
    "%s": LogEvent("config.unknown_variable", ("reason",)),
}


def fields_of(event: LogEvent, arguments: object) -> dict[str, Any]:
    """Return the values of a line by name, as JSON can carry them."""
    values = arguments if isinstance(arguments, tuple) else ()
    found: dict[str, Any] = {}
    for name, value in zip(event.fields, values, strict=False):
        if name:
            plain = isinstance(value, int | float) and type(value) in (int, float, bool)
            text = str(value).removesuffix(": ") if name == "subject" else str(value)
            found[name] = value if plain else text[:_MAX_VALUE_CHARACTERS]
    return found

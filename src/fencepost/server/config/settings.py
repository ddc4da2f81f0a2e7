"""The server's settings. Names and defaults are Kafka's where Kafka has the setting."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from fencepost.core.security.principal import parse_principal
from fencepost.errors import ConfigError
from fencepost.server.config.addresses import is_loopback, parse_address
from fencepost.server.config.listener import ListenerConfig, WrongSetting, raise_first
from fencepost.setting import setting
from fencepost.types import Milliseconds, fault_of_topic_name

Sync: TypeAlias = Literal["always", "os"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["text", "json"]

DEFAULT_LISTENER: Final = "default"
"""Name of the listener that `listen` and `advertise` describe."""
SECTIONS: Final = ("audit", "authorization", "http", "oauth")
"""Tables of the configuration file: `[oauth] issuer` is the setting `oauth_issuer`."""

FILES_OR_ADDRESSES: Final = frozenset({"oauth_jwks"})
"""Texts that are paths unless they have a scheme; as every path, a relative one starts at the folder of the file."""

_DAY: Milliseconds = 24 * 60 * 60 * 1000
_MAY_BE_ZERO = frozenset(
    {
        "node_id",
        "drain_ms",
        "connections_max_reauth_ms",
        "group_initial_rebalance_delay_ms",
        "min_free_bytes",
        "reserve_bytes",
    }
)
"""Numbers whose minimum is 0; the minimum of all others is 1."""
_LARGEST = {
    "default_partitions": 100_000,
    "request_memory": 2**62,
    "answer_memory": 2**62,
    "group_memory": 2**62,
    "min_free_bytes": 2**62,
    "audit_file_bytes": 2**62,
    "audit_files": 10_000,
}
"""Maximum per setting; for all others it is 2³¹−1, or a hundred years for a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    data: Path | None = setting(None, "The data directory. None: a temporary one, deleted when the server stops.")
    listen: str = setting("127.0.0.1:9092", "HOST:PORT to listen on; port 0 picks a free port.", live=True)
    advertise: str | None = setting(
        None, "HOST:PORT that clients are told to connect to. None: the address they dialled.", live=True
    )
    listeners: tuple[ListenerConfig, ...] = setting(
        (), "Named listeners (`[listeners.NAME]`), in place of `listen` and `advertise`.", live=True
    )
    sync: Sync = setting(
        "always",
        "'always': sync records to disk before acknowledging them. 'os': the operating system syncs, as in Kafka.",
    )
    insecure: bool = setting(
        False, "Allow listening beyond loopback, although strangers could use the server.", live=True
    )
    log_level: LogLevel = setting(
        "warning", "What a server process logs to stderr: debug, info, warning or error.", live=True
    )
    log_format: LogFormat = setting(
        "text", "Form of the log on stderr: text, or json with one object per line and stable names of events."
    )
    auto_create_topics: bool = setting(
        True,
        "Create a missing topic when a client asks for its metadata, which producers do before they write.",
        live=True,
    )
    default_partitions: int = setting(
        1, "Partitions of a topic that is created without a number of partitions.", live=True
    )
    node_id: int = setting(1, "The server's node id in Metadata.")
    max_request_bytes: int = setting(100 * 1024 * 1024, "Maximum size of a request (Kafka: socket.request.max.bytes).")
    request_memory: int = setting(512 * 1024 * 1024, "Maximum bytes of requests in memory, over all connections.")
    max_inflated_bytes: int = setting(
        128 * 1024 * 1024, "Maximum decompressed size of one batch; the server rejects larger batches."
    )
    fetch_max_bytes: int = setting(
        8 * 1024 * 1024,
        "Maximum bytes of records in one fetch response, whatever the client asks for (but at least one whole batch).",
        live=True,
    )
    answer_memory: int = setting(
        256 * 1024 * 1024,
        "Maximum bytes of responses that clients have not read yet, over all connections. Fetch responses get "
        "smaller as it fills up.",
    )
    max_fetch_sessions: int = setting(
        1000,
        "Maximum number of fetch sessions; readers without one name their partitions in each request "
        "(Kafka: max.incremental.fetch.session.cache.slots).",
    )
    open_files: int = setting(
        10_000,
        "Maximum number of segment files kept open, at most half of what the process may open; others are reopened "
        "when used.",
    )
    connection_idle_ms: Milliseconds = setting(10 * 60 * 1000, "Close a connection after this idle time.", live=True)
    producer_expiry_ms: Milliseconds = setting(
        _DAY, "Remember an idle pid at least this long (Kafka: producer.id.expiration.ms)."
    )
    max_connections: int = setting(20_000, "Maximum number of connections; the server closes further ones.", live=True)
    max_connections_per_address: int = setting(
        10_000,
        "Maximum number of connections of one IP address; the server closes further ones "
        "(Kafka: max.connections.per.ip).",
        live=True,
    )
    max_connections_per_user: int = setting(
        10_000,
        "Maximum number of connections of one user, by login or certificate; the server closes further ones.",
        live=True,
    )
    max_connection_rate_per_address: int = setting(
        1_000,
        "Maximum number of connections per second that one IP address opens, unless it has a quota "
        "(connection_creation_rate); the server closes further ones.",
        live=True,
    )
    max_pending_connections_per_address: int = setting(
        500,
        "As max_pending_connections, for one IP address: its own oldest connection makes way.",
        live=True,
    )
    max_pending_connections: int = setting(
        1_000,
        "Maximum number of connections whose TLS handshake or login is not done; the oldest makes way for a new one.",
        live=True,
    )
    authentication_timeout_ms: Milliseconds = setting(
        10_000, "Close a connection whose TLS handshake or login takes longer.", live=True
    )
    connections_max_reauth_ms: Milliseconds = setting(
        0, "Time after which a client must log in again (Kafka: connections.max.reauth.ms). 0: never.", live=True
    )
    quota_burst_ms: Milliseconds = setting(
        10_000,
        "What a client may use at once after a pause: its quota for this time "
        "(Kafka: quota.window.num and quota.window.size.seconds).",
        live=True,
    )
    drain_ms: Milliseconds = setting(5_000, "How long a stopping server waits for requests in progress.", live=True)
    group_min_session_timeout_ms: Milliseconds = setting(
        6_000, "Minimum session timeout that a group member may ask for."
    )
    group_max_session_timeout_ms: Milliseconds = setting(
        1_800_000, "Maximum session timeout that a group member may ask for."
    )
    group_initial_rebalance_delay_ms: Milliseconds = setting(
        0, "How long an empty group waits for further members before its first rebalance."
    )
    group_max_size: int = setting(5_000, "Maximum number of members of a group.")
    max_groups: int = setting(20_000, "Maximum number of groups.", live=True)
    group_memory: int = setting(
        64 * 1024 * 1024,
        "Maximum bytes of member metadata, assignments and metadata of committed offsets, over all groups.",
    )
    max_topics: int = setting(20_000, "Maximum number of topics.")
    max_partitions: int = setting(200_000, "Maximum number of partitions, over all topics.")
    max_producers: int = setting(
        100_000,
        "Maximum number of remembered producers; a producer counts once in each partition that it writes to. From half "
        "of it on, sixteen that were idle for ten minutes count as one.",
    )
    max_transactional_ids: int = setting(20_000, "Maximum number of transactional ids.", live=True)
    max_resources: int = setting(
        500_000, "Maximum number of resources that were ever owned; the server never forgets their tokens.", live=True
    )
    group_consumer_session_timeout_ms: Milliseconds = setting(
        45_000, "Session timeout of groups that use the new protocol (KIP-848)."
    )
    group_consumer_heartbeat_interval_ms: Milliseconds = setting(
        5_000, "Heartbeat interval of groups that use the new protocol (KIP-848)."
    )
    offsets_retention_ms: Milliseconds = setting(
        7 * _DAY, "Keep the committed offsets of a group without members this long.", live=True
    )
    transaction_max_timeout_ms: Milliseconds = setting(
        15 * 60 * 1000, "Maximum timeout that a transaction may ask for.", live=True
    )
    background_interval_ms: Milliseconds = setting(
        5 * 60 * 1000, "How often the server checks for retention, idle pids and compaction.", live=True
    )
    min_free_bytes: int = setting(
        64 * 1024 * 1024,
        "Reject new records while the disk has less free space than this, or than 1/20 of the file system if "
        "that is less.",
    )
    reserve_bytes: int = setting(
        8 * 1024 * 1024,
        "Size of a reserve file that the server deletes when the disk is full, so that cleanup has room to start "
        "(at most 1/50 of the file system).",
    )
    http_address: str | None = setting(
        None, "HOST:PORT for health, metrics and the like (HTTP); port 0 picks a free port. None: no such port."
    )
    http_listener: str | None = setting(
        None, "Name of the listener whose certificate the HTTP port uses (HTTPS). None: HTTP without TLS."
    )
    http_public_url: str | None = setting(
        None,
        "The address at which browsers see the HTTP port, such as https://log.example.com, if a proxy in front of it "
        "ends TLS.",
    )
    http_max_series: int = setting(
        100_000,
        "Maximum number of series by partition in /metrics; beyond it there are only sums by topic and group.",
        live=True,
    )
    http_max_names: int = setting(
        5000,
        "Maximum number of topics, of groups and of sinks with series of their own in /metrics; the others are summed "
        "as (other).",
        live=True,
    )
    authorization_enabled: bool = setting(False, "Check every request against the ACLs.")
    authorization_super_users: tuple[str, ...] = setting((), "Principals that may do everything, such as User:admin.")
    authorization_allow_everyone_if_no_acl: bool = setting(False, "Allow everyone to use a resource that has no ACL.")
    audit_file: Path | None = setting(
        None, "File of the audit log, with mode 0600. Its folder must exist. None: no file.", live=True
    )
    audit_file_bytes: int = setting(
        64 * 1024 * 1024, "Size from which a file of the audit log is followed by the next one.", live=True
    )
    audit_files: int = setting(
        10, "Number of files of the audit log, with the one that is being written; the oldest is deleted.", live=True
    )
    audit_topic: str | None = setting(
        None,
        "Topic of the audit log, which the server creates. Nobody but super users can read it. None: no topic.",
    )
    oauth_issuer: str | None = setting(None, "The issuer (`iss`) that tokens must have.")
    oauth_jwks: str | None = setting(None, "File or address of the keys (JWKS) that tokens are signed with.")
    oauth_audience: str | None = setting(None, "The audience (`aud`) that tokens must have.")
    oauth_subject_claim: str = setting("sub", "The claim that becomes the principal's name.")

    def __post_init__(self) -> None:
        for field in fields(self):
            check_setting(field, getattr(self, field.name))
        names = [listener.name for listener in self.listeners]
        if len(set(names)) < len(names):
            raise ConfigError(f"listeners must have different names, not {', '.join(names)}")
        raise_first(self._contradictions())

    def _contradictions(self) -> Iterator[WrongSetting]:
        """Yield the settings that are wrong only together with others."""
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield WrongSetting(
                "group_min_session_timeout_ms",
                f"group_min_session_timeout_ms={self.group_min_session_timeout_ms} is above "
                f"group_max_session_timeout_ms={self.group_max_session_timeout_ms}",
                because_of=("group_max_session_timeout_ms",),
            )
        if self.audit_topic is not None and not self.authorization_enabled:
            yield WrongSetting(
                "audit_topic",
                "audit.topic needs authorization.enabled, because otherwise everybody could read the topic",
                because_of=("authorization_enabled",),
            )
        for listener in self.endpoints:
            yield from self._reach_mistakes(listener)
        if any("OAUTHBEARER" in each.mechanisms for each in self.endpoints if each.authenticates):
            yield from self._token_mistakes()
        if self.http_address is not None:
            yield from self._http_mistakes(self.http_address)

    def _http_mistakes(self, address: str) -> Iterator[WrongSetting]:
        """Yield the settings of an HTTP port that has no certificate, or would let strangers look in."""
        encrypting = [each.name for each in self.endpoints if each.encrypts]
        if self.http_listener is not None and self.http_listener not in encrypting:
            known = ", ".join(encrypting) or "there is none"
            yield WrongSetting(
                "http_listener",
                f"{file_name('http_listener')} must name a listener with TLS ({known}), not {self.http_listener!r}",
                because_of=("listeners",),
            )
        host, _ = parse_address(address)
        is_protected = self.authorization_enabled and self.http_listener is not None
        if not (self.insecure or is_protected or is_loopback(host)):
            yield WrongSetting(
                "http_address",
                f"refusing to serve HTTP on {host}: anyone who can reach it could see everything; enable authorization "
                "and name a listener with TLS (http.listener), use 127.0.0.1, or pass --insecure if the network is "
                "protected",
                because_of=("insecure", "authorization_enabled", "http_listener"),
            )

    def _token_mistakes(self) -> Iterator[WrongSetting]:
        """Yield the settings that are missing or unsafe where a listener takes tokens."""
        from urllib.parse import urlsplit  # here, because few servers need it

        for name in ("oauth_issuer", "oauth_audience", "oauth_jwks"):
            if not getattr(self, name):
                yield WrongSetting(name, f"{file_name(name)} is missing: OAUTHBEARER needs it")
        address = urlsplit(self.oauth_jwks or "")
        if address.scheme == "http" and not is_loopback(address.hostname or ""):
            yield WrongSetting(
                "oauth_jwks",
                f"{file_name('oauth_jwks')} must be a file or an address with https, not {self.oauth_jwks!r}: anyone "
                "in between could replace the keys",
            )

    def _reach_mistakes(self, listener: ListenerConfig) -> Iterator[WrongSetting]:
        """Yield the address of a listener that would let strangers in."""
        host, _ = parse_address(listener.address)
        if self.insecure or listener.is_safe or is_loopback(host):
            return
        yield WrongSetting(
            listener.named("address") if self.listeners else "listen",
            f"refusing to listen on {host}: anyone who can reach it could read and write everything; require client "
            "certificates (protocol ssl) or logins (sasl_ssl), listen on 127.0.0.1, or pass --insecure if the network "
            "is protected",
            because_of=("insecure",),
        )

    @property
    def endpoints(self) -> tuple[ListenerConfig, ...]:
        """The listeners to open: the named ones, or the one that `listen` describes."""
        return self.listeners or (ListenerConfig(name=DEFAULT_LISTENER, address=self.listen, advertise=self.advertise),)


class ServerKeywords(TypedDict, total=False):
    """The settings that `Server` takes besides those in its signature; `ServerConfig` explains each."""

    advertise: str | None
    listeners: tuple[ListenerConfig, ...]
    insecure: bool
    log_level: LogLevel
    log_format: LogFormat
    auto_create_topics: bool
    default_partitions: int
    node_id: int
    max_request_bytes: int
    request_memory: int
    fetch_max_bytes: int
    answer_memory: int
    max_fetch_sessions: int
    open_files: int
    connection_idle_ms: Milliseconds
    producer_expiry_ms: Milliseconds
    max_connections: int
    max_connections_per_address: int
    max_connections_per_user: int
    max_connection_rate_per_address: int
    max_pending_connections_per_address: int
    max_pending_connections: int
    authentication_timeout_ms: Milliseconds
    connections_max_reauth_ms: Milliseconds
    quota_burst_ms: Milliseconds
    drain_ms: Milliseconds
    group_min_session_timeout_ms: Milliseconds
    group_max_session_timeout_ms: Milliseconds
    group_initial_rebalance_delay_ms: Milliseconds
    group_max_size: int
    max_groups: int
    group_memory: int
    max_topics: int
    max_partitions: int
    max_producers: int
    max_transactional_ids: int
    max_resources: int
    group_consumer_session_timeout_ms: Milliseconds
    group_consumer_heartbeat_interval_ms: Milliseconds
    offsets_retention_ms: Milliseconds
    transaction_max_timeout_ms: Milliseconds
    background_interval_ms: Milliseconds
    max_inflated_bytes: int
    min_free_bytes: int
    reserve_bytes: int
    http_address: str | None
    http_listener: str | None
    http_public_url: str | None
    http_max_series: int
    http_max_names: int
    authorization_enabled: bool
    authorization_super_users: tuple[str, ...]
    authorization_allow_everyone_if_no_acl: bool
    audit_file: Path | None
    audit_file_bytes: int
    audit_files: int
    audit_topic: str | None
    oauth_issuer: str | None
    oauth_jwks: str | None
    oauth_audience: str | None
    oauth_subject_claim: str


def file_name(name: str) -> str:
    """Return a setting's name as a configuration file has it: `oauth.issuer` for `oauth_issuer`."""
    for section in SECTIONS:
        if name.startswith(f"{section}_"):
            return f"{section}.{name.removeprefix(f'{section}_')}"
    return name


def check_names(settings: Iterable[str]) -> None:
    """Raise ConfigError for an unknown setting, and suggest the most similar one."""
    known = [each.name for each in fields(ServerConfig)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def check_setting(field: Field[Any], value: object) -> None:
    """Raise WrongSetting for a value that the setting cannot have, whatever the other settings are."""
    name = field.name
    if name == "sync" and value not in get_args(Sync):
        raise WrongSetting(name, f"sync must be 'always' or 'os', not {value!r}")
    if name == "log_level" and value not in get_args(LogLevel):
        raise WrongSetting(name, f"log_level must be one of {', '.join(get_args(LogLevel))}, not {value!r}")
    if name == "log_format" and value not in get_args(LogFormat):
        raise WrongSetting(name, f"log_format must be 'text' or 'json', not {value!r}")
    if name in ("listen", "advertise", "http_address") and value is not None:
        parse_address(str(value))
    if name == "http_public_url" and value is not None and not re.fullmatch(r"https?://[^\s/?#@A-Z]+", str(value)):
        wanted = "https://HOST or https://HOST:PORT in small letters, without a path"
        raise WrongSetting(name, f"{file_name(name)} must be {wanted}, not {value!r}")
    if name == "authorization_super_users" and isinstance(value, tuple):
        for principal in value:
            _check_principal(name, principal)
    if name == "audit_topic" and value is not None and (fault := fault_of_topic_name(str(value))) is not None:
        raise WrongSetting(name, f"{file_name(name)}: {fault}")
    if name == "audit_file" and isinstance(value, Path) and (value.is_dir() or not value.parent.is_dir()):
        raise WrongSetting(name, f"{file_name(name)} must be a file in a folder that exists, not {str(value)!r}")
    if isinstance(value, int) and not isinstance(value, bool):
        _check_number(name, value)


def _check_principal(name: str, text: str) -> None:
    try:
        parse_principal(text)
    except ConfigError as error:
        raise WrongSetting(name, f"{file_name(name)}: {error}") from None


def _check_number(name: str, value: int) -> None:
    lowest = 0 if name in _MAY_BE_ZERO else 1
    largest = _LARGEST.get(name, 36_525 * _DAY if name.endswith("_ms") else 2**31 - 1)
    if not lowest <= value <= largest:
        raise WrongSetting(name, f"{file_name(name)} must be from {lowest} to {largest}, not {value}")

"""The server's settings. Names and defaults are Kafka's where Kafka has the setting."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from fencepost.errors import ConfigError
from fencepost.setting import setting
from fencepost.types import Milliseconds

Sync: TypeAlias = Literal["always", "os"]

_DAY: Milliseconds = 24 * 60 * 60 * 1000
_MAY_BE_ZERO = frozenset(
    {
        "node_id",
        "drain_ms",
        "group_initial_rebalance_delay_ms",
        "offset_metadata_max_bytes",
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
}
"""Maximum per setting; for all others it is 2³¹−1, or a hundred years for a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    data: Path | None = setting(None, "The data directory. None: a temporary one, deleted when the server stops.")
    listen: str = setting("127.0.0.1:9092", "HOST:PORT to listen on; port 0 picks a free port.")
    advertise: str | None = setting(
        None, "HOST:PORT that clients are told to connect to. None: the address they dialled."
    )
    sync: Sync = setting(
        "always",
        "'always': sync records to disk before acknowledging them. 'os': the operating system syncs, as in Kafka.",
    )
    insecure: bool = setting(False, "Allow listening beyond loopback, although the server authenticates nobody.")
    auto_create_topics: bool = setting(
        True, "Create a missing topic when a client asks for its metadata, which producers do before they write."
    )
    default_partitions: int = setting(1, "Partitions of a topic that is created without a number of partitions.")
    node_id: int = setting(1, "The server's node id in Metadata.")
    max_request_bytes: int = setting(100 * 1024 * 1024, "Maximum size of a request (Kafka: socket.request.max.bytes).")
    request_memory: int = setting(512 * 1024 * 1024, "Maximum bytes of requests in memory, over all connections.")
    max_inflated_bytes: int = setting(
        128 * 1024 * 1024, "Maximum decompressed size of one batch; the server rejects larger batches."
    )
    fetch_max_bytes: int = setting(
        8 * 1024 * 1024,
        "Maximum bytes of records in one fetch response, whatever the client asks for (but at least one whole batch).",
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
    max_fetch_session_partitions: int = setting(
        200_000, "Maximum number of partitions in all fetch sessions and waiting wide fetches, at some 500 bytes each."
    )
    open_files: int = setting(400, "Maximum number of segment files kept open; others are reopened when used.")
    connection_idle_ms: Milliseconds = setting(10 * 60 * 1000, "Close a connection after this idle time.")
    stalled_frame_ms: Milliseconds = setting(
        10_000,
        "Close a connection whose half-sent request makes no progress for this long while others wait for memory.",
    )
    producer_expiry_ms: Milliseconds = setting(
        _DAY, "Remember an idle pid at least this long (Kafka: producer.id.expiration.ms)."
    )
    max_connections: int = setting(20_000, "Maximum number of connections; the server closes further ones.")
    drain_ms: Milliseconds = setting(5_000, "How long a stopping server waits for requests in progress.")
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
    max_groups: int = setting(20_000, "Maximum number of groups.")
    group_memory: int = setting(
        64 * 1024 * 1024,
        "Maximum bytes of member metadata, assignments and metadata of committed offsets, over all groups.",
    )
    max_topics: int = setting(20_000, "Maximum number of topics.")
    max_partitions: int = setting(200_000, "Maximum number of partitions, over all topics.")
    max_producers: int = setting(
        100_000, "Maximum number of remembered producers; a producer counts once in each partition that it writes to."
    )
    max_transactional_ids: int = setting(20_000, "Maximum number of transactional ids.")
    max_resources: int = setting(
        500_000, "Maximum number of resources that were ever owned; the server never forgets their tokens."
    )
    max_waiting_resources: int = setting(
        100_000, "Maximum number of resources that waiting claims name, over all claims."
    )
    group_consumer_session_timeout_ms: Milliseconds = setting(
        45_000, "Session timeout of groups that use the new protocol (KIP-848)."
    )
    group_consumer_heartbeat_interval_ms: Milliseconds = setting(
        5_000, "Heartbeat interval of groups that use the new protocol (KIP-848)."
    )
    offsets_retention_ms: Milliseconds = setting(
        7 * _DAY, "Keep the committed offsets of a group without members this long."
    )
    offset_metadata_max_bytes: int = setting(4096, "Maximum size of the metadata string of a committed offset.")
    transaction_max_timeout_ms: Milliseconds = setting(
        15 * 60 * 1000, "Maximum timeout that a transaction may ask for."
    )
    background_interval_ms: Milliseconds = setting(
        5 * 60 * 1000, "How often the server checks for retention, idle pids and compaction."
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
    compaction_keys: int = setting(
        200_000,
        "Maximum number of keys that compaction holds in memory, at under 200 bytes each; more keys take more passes.",
    )

    def __post_init__(self) -> None:
        if self.sync not in ("always", "os"):
            raise ConfigError(f"sync must be 'always' or 'os', not {self.sync!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not isinstance(value, bool):
                _check_number(field.name, value)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group_min_session_timeout_ms={self.group_min_session_timeout_ms} is above "
                f"group_max_session_timeout_ms={self.group_max_session_timeout_ms}"
            )
        host, _ = parse_address(self.listen)
        if not self.insecure and not is_loopback(host):
            raise ConfigError(
                f"refusing to listen on {host}: anyone who can reach it could read and write everything; "
                "listen on 127.0.0.1, or pass --insecure if the network is protected"
            )
        if self.advertise is not None:
            parse_address(self.advertise)

    def with_options(self, options: dict[str, str]) -> ServerConfig:
        """Return a copy with settings given as text (`-X name=value`); dots and dashes count as underscores."""
        changes: dict[str, object] = {}
        for given, text in options.items():
            name = given.replace(".", "_").replace("-", "_")
            check_names([name])
            changes[name] = _parse_setting(given, text, getattr(self, name))
        return replace(self, **changes)  # type: ignore[arg-type]


class ServerKeywords(TypedDict, total=False):
    """The settings that `Server` takes besides those in its signature; `ServerConfig` explains each."""

    advertise: str | None
    insecure: bool
    auto_create_topics: bool
    default_partitions: int
    node_id: int
    max_request_bytes: int
    request_memory: int
    fetch_max_bytes: int
    answer_memory: int
    max_fetch_sessions: int
    max_fetch_session_partitions: int
    open_files: int
    connection_idle_ms: Milliseconds
    stalled_frame_ms: Milliseconds
    producer_expiry_ms: Milliseconds
    max_connections: int
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
    max_waiting_resources: int
    group_consumer_session_timeout_ms: Milliseconds
    group_consumer_heartbeat_interval_ms: Milliseconds
    offsets_retention_ms: Milliseconds
    offset_metadata_max_bytes: int
    transaction_max_timeout_ms: Milliseconds
    background_interval_ms: Milliseconds
    max_inflated_bytes: int
    min_free_bytes: int
    reserve_bytes: int
    compaction_keys: int


def check_names(settings: Iterable[str]) -> None:
    """Raise ConfigError for an unknown setting, and suggest the most similar one."""
    known = [each.name for each in fields(ServerConfig)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _check_number(name: str, value: int) -> None:
    lowest = 0 if name in _MAY_BE_ZERO else 1
    largest = _LARGEST.get(name, 36_525 * _DAY if name.endswith("_ms") else 2**31 - 1)
    if not lowest <= value <= largest:
        raise ConfigError(f"{name} must be from {lowest} to {largest}, not {value}")


def _parse_setting(name: str, text: str, current: object) -> object:
    if isinstance(current, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(current, int):
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{name} must be a whole number, not {text!r}") from None
    return Path(text) if name == "data" else text


def parse_address(address: str) -> tuple[str, int]:
    """Parse HOST:PORT or [IPV6]:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"address must be HOST:PORT, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

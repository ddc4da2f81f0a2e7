"""Kafka's error codes in one table, and the exceptions that users catch.

Every exception tells the caller what to do next: `code` is Kafka's code, if there is one; `retriable` says whether the
same call may succeed later; `fatal` says that the producer or reader is unusable. A failed send also says whether the
record is in the log (`persisted`: "yes", "no" or "unknown"; for a table also "partly").

Every exception can be pickled and copied, as multiprocessing, Spark and Celery do with the error of a task. Its cause
stays behind, as with Python's own exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

from fencepost.types import TableRows, TopicPartition

Persisted: TypeAlias = Literal["yes", "no", "unknown"]
TablePersisted: TypeAlias = Literal["yes", "no", "unknown", "partly"]
"""As Persisted, or "partly": some rows of a table are in the log, and others may not be."""


class ErrorCode(IntEnum):
    """Kafka's codes by Kafka's names; `retriable` is as Kafka defines it."""

    retriable: bool

    def __new__(cls, code: int, retriable: bool) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the member for a number from the wire; UNKNOWN_SERVER_ERROR for an unknown number."""
        return cls._value2member_map_.get(code, cls.UNKNOWN_SERVER_ERROR)  # type: ignore[return-value]

    UNKNOWN_SERVER_ERROR = -1, False
    NONE = 0, False
    OFFSET_OUT_OF_RANGE = 1, False
    CORRUPT_MESSAGE = 2, True
    UNKNOWN_TOPIC_OR_PARTITION = 3, True
    INVALID_FETCH_SIZE = 4, False
    LEADER_NOT_AVAILABLE = 5, True
    NOT_LEADER_OR_FOLLOWER = 6, True
    REQUEST_TIMED_OUT = 7, True
    BROKER_NOT_AVAILABLE = 8, False
    REPLICA_NOT_AVAILABLE = 9, True
    MESSAGE_TOO_LARGE = 10, False
    STALE_CONTROLLER_EPOCH = 11, False
    OFFSET_METADATA_TOO_LARGE = 12, False
    NETWORK_EXCEPTION = 13, True
    COORDINATOR_LOAD_IN_PROGRESS = 14, True
    COORDINATOR_NOT_AVAILABLE = 15, True
    NOT_COORDINATOR = 16, True
    INVALID_TOPIC_EXCEPTION = 17, False
    RECORD_LIST_TOO_LARGE = 18, False
    NOT_ENOUGH_REPLICAS = 19, True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True
    INVALID_REQUIRED_ACKS = 21, False
    ILLEGAL_GENERATION = 22, False
    INCONSISTENT_GROUP_PROTOCOL = 23, False
    INVALID_GROUP_ID = 24, False
    UNKNOWN_MEMBER_ID = 25, False
    INVALID_SESSION_TIMEOUT = 26, False
    REBALANCE_IN_PROGRESS = 27, False
    INVALID_COMMIT_OFFSET_SIZE = 28, False
    TOPIC_AUTHORIZATION_FAILED = 29, False
    GROUP_AUTHORIZATION_FAILED = 30, False
    CLUSTER_AUTHORIZATION_FAILED = 31, False
    INVALID_TIMESTAMP = 32, False
    UNSUPPORTED_SASL_MECHANISM = 33, False
    ILLEGAL_SASL_STATE = 34, False
    UNSUPPORTED_VERSION = 35, False
    TOPIC_ALREADY_EXISTS = 36, False
    INVALID_PARTITIONS = 37, False
    INVALID_REPLICATION_FACTOR = 38, False
    INVALID_REPLICA_ASSIGNMENT = 39, False
    INVALID_CONFIG = 40, False
    NOT_CONTROLLER = 41, True
    INVALID_REQUEST = 42, False
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False
    POLICY_VIOLATION = 44, False
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False
    DUPLICATE_SEQUENCE_NUMBER = 46, False
    INVALID_PRODUCER_EPOCH = 47, False
    INVALID_TXN_STATE = 48, False
    INVALID_PRODUCER_ID_MAPPING = 49, False
    INVALID_TRANSACTION_TIMEOUT = 50, False
    CONCURRENT_TRANSACTIONS = 51, True
    TRANSACTION_COORDINATOR_FENCED = 52, False
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False
    SECURITY_DISABLED = 54, False
    OPERATION_NOT_ATTEMPTED = 55, False
    KAFKA_STORAGE_ERROR = 56, True
    LOG_DIR_NOT_FOUND = 57, False
    SASL_AUTHENTICATION_FAILED = 58, False
    UNKNOWN_PRODUCER_ID = 59, False
    REASSIGNMENT_IN_PROGRESS = 60, False
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False
    DELEGATION_TOKEN_NOT_FOUND = 62, False
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False
    DELEGATION_TOKEN_EXPIRED = 66, False
    INVALID_PRINCIPAL_TYPE = 67, False
    NON_EMPTY_GROUP = 68, False
    GROUP_ID_NOT_FOUND = 69, False
    FETCH_SESSION_ID_NOT_FOUND = 70, True
    INVALID_FETCH_SESSION_EPOCH = 71, True
    LISTENER_NOT_FOUND = 72, True
    TOPIC_DELETION_DISABLED = 73, False
    FENCED_LEADER_EPOCH = 74, True
    UNKNOWN_LEADER_EPOCH = 75, True
    UNSUPPORTED_COMPRESSION_TYPE = 76, False
    STALE_BROKER_EPOCH = 77, False
    OFFSET_NOT_AVAILABLE = 78, True
    MEMBER_ID_REQUIRED = 79, False
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True
    GROUP_MAX_SIZE_REACHED = 81, False
    FENCED_INSTANCE_ID = 82, False
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True
    ELECTION_NOT_NEEDED = 84, True
    NO_REASSIGNMENT_IN_PROGRESS = 85, False
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False
    INVALID_RECORD = 87, False
    UNSTABLE_OFFSET_COMMIT = 88, True
    THROTTLING_QUOTA_EXCEEDED = 89, True
    PRODUCER_FENCED = 90, False
    RESOURCE_NOT_FOUND = 91, False
    DUPLICATE_RESOURCE = 92, False
    UNACCEPTABLE_CREDENTIAL = 93, False
    INCONSISTENT_VOTER_SET = 94, False
    INVALID_UPDATE_VERSION = 95, False
    FEATURE_UPDATE_FAILED = 96, False
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False
    SNAPSHOT_NOT_FOUND = 98, False
    POSITION_OUT_OF_RANGE = 99, False
    UNKNOWN_TOPIC_ID = 100, True
    DUPLICATE_BROKER_REGISTRATION = 101, False
    BROKER_ID_NOT_REGISTERED = 102, False
    INCONSISTENT_TOPIC_ID = 103, True
    INCONSISTENT_CLUSTER_ID = 104, False
    TRANSACTIONAL_ID_NOT_FOUND = 105, False
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True
    INELIGIBLE_REPLICA = 107, False
    NEW_LEADER_ELECTED = 108, False
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False
    FENCED_MEMBER_EPOCH = 110, False
    UNRELEASED_INSTANCE_ID = 111, False
    UNSUPPORTED_ASSIGNOR = 112, False
    STALE_MEMBER_EPOCH = 113, False
    MISMATCHED_ENDPOINT_TYPE = 114, False
    UNSUPPORTED_ENDPOINT_TYPE = 115, False
    UNKNOWN_CONTROLLER_ID = 116, False
    UNKNOWN_SUBSCRIPTION_ID = 117, False
    TELEMETRY_TOO_LARGE = 118, False
    INVALID_REGISTRATION = 119, False
    TRANSACTION_ABORTABLE = 120, False
    INVALID_RECORD_STATE = 121, False
    SHARE_SESSION_NOT_FOUND = 122, True
    INVALID_SHARE_SESSION_EPOCH = 123, True
    FENCED_STATE_EPOCH = 124, False
    INVALID_VOTER_KEY = 125, False
    DUPLICATE_VOTER = 126, False
    VOTER_NOT_FOUND = 127, False
    INVALID_REGULAR_EXPRESSION = 128, False
    REBOOTSTRAP_REQUIRED = 129, False
    STREAMS_INVALID_TOPOLOGY = 130, False
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False
    STREAMS_TOPOLOGY_FENCED = 132, False
    SHARE_SESSION_LIMIT_REACHED = 133, True


LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""The broker is not the partition's leader, or there is no leader yet: refresh the metadata and ask the new leader."""

LEADER_IN_DOUBT: Final = LEADER_MOVED | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}
"""As LEADER_MOVED; or the broker does not know the partition, or cannot access it."""


class FencepostError(Exception):
    """Root of everything fencepost raises on purpose."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: bool = False
    fatal: bool = False

    @property
    def reason(self) -> str:
        """The message without the code's name."""
        return str(self)

    def fresh(self) -> Self:
        """Return an equal exception to raise. One object that is raised again and again collects a traceback entry each
        time, and keeps alive the local variables of every frame it has passed."""
        again = _rebuilt(type(self), self.args, self.__dict__)
        again.__cause__ = self.__cause__
        return again

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with `args`, the message: not what the constructors here take.
        return _rebuilt, (type(self), self.args, self._kept())

    def _kept(self) -> dict[str, Any]:
        """Return the attributes that a copy has, in this process or another."""
        return self.__dict__


E = TypeVar("E", bound=FencepostError)


def _rebuilt(kind: type[E], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> E:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    if "__notes__" in attributes:
        error.__notes__ = [*attributes["__notes__"]]  # a note on one is not a note on the other
    return error


class ServerError(FencepostError):
    """The server answered with an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.retriable = code.retriable
        self.message = message
        self.failed: tuple[str, ...] = ()
        """If the call was about several things: the names of those that failed. For the others it succeeded."""

    @property
    def reason(self) -> str:
        return self.message or self.code.name


class CorruptBatch(FencepostError):
    """Bytes that are not a valid record batch: a wrong length, checksum, count or codec."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnsupportedFormat(FencepostError):
    """A message format older than record batch v2, or a codec that does not exist."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class Malformed(FencepostError):
    """Bytes that are not a valid protocol message; the sender is at fault."""

    code = ErrorCode.INVALID_REQUEST


class StorageError(FencepostError):
    """A disk error: the disk is full or broken, or a sync failed."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class DataDirectoryError(FencepostError):
    """An unusable data directory: in use, of a newer format, or not readable."""

    fatal = True


class Unreachable(FencepostError):
    """None of the given addresses answered."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class TlsRefused(Unreachable):
    """A failed TLS handshake: one side does not trust the other's certificate, or does not speak TLS."""

    retriable = False


class TimedOut(FencepostError):
    """No response in time; it is unknown whether the call took effect."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class ConfigError(FencepostError):
    """An unknown setting, or an invalid value; the message names both."""

    code = ErrorCode.INVALID_CONFIG


class SendFailed(FencepostError):
    """Records that were not acknowledged. `persisted` says whether they are in the log nevertheless."""

    def __init__(
        self,
        message: str,
        *,
        persisted: TablePersisted,
        code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
        topic: str = "",
        partition: int | None = None,
        count: int = 1,
    ) -> None:
        where = f"{topic}-{partition}" if partition is not None else topic
        super().__init__(
            f"{where}: {message} (persisted: {persisted})" if where else f"{message} (persisted: {persisted})"
        )
        self.message = message
        self.persisted: TablePersisted = persisted
        self.code = code
        self.retriable = code.retriable and persisted == "no"
        self.topic = topic
        self.partition = partition
        self.count = count
        """The number of records that failed together: those of one batch, or of a table."""
        self.rows: TableRows | None = None
        """If a table was sent (`send_arrow`): which of its rows are in the log, which are not, which may be."""


class NotOwned(SendFailed):
    """A record whose key belongs to a partition that the producer does not own, while it owns others of the topic."""

    def __init__(self, topic: str, partition: int | None, owned: Iterable[int], count: int) -> None:
        mine = sorted(owned)
        self.owned: tuple[int, ...] = tuple(mine)
        """The partitions of the topic that the producer owns."""
        more = f" and {len(mine) - 5} more" if len(mine) > 5 else ""
        names = ", ".join(f"{topic}-{each}" for each in mine[:5]) + more
        if partition is None:
            message = f"this producer owns {names}, and the topic has {count} partitions: own one that exists"
        else:
            message = (
                f"its key belongs to {topic}-{partition}, and this producer owns {names}: send it with the producer "
                f"that owns {topic}-{partition}, claim that partition too, or name a partition that is owned"
            )
        super().__init__(message, persisted="no", topic=topic, partition=partition)


class Expired(SendFailed):
    """Not acknowledged within `delivery_timeout`."""


class Fenced(SendFailed):
    """Another writer took over: a newer epoch of the name, or a newer owner. Final: a fenced writer must stop."""

    fatal = True


class TopicRecreated(ServerError):
    """The topic was deleted and created again: a position in the old one means nothing in the new one."""

    def __init__(self, partition: TopicPartition, position: int) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"{partition}: the topic was deleted and created again, so offset {position} of the old one means nothing; "
            "open a new reader, which starts in the new one",
        )
        self.partition = partition
        self.retriable = False


class PartitionsLost(FencepostError):
    """A member of a group no longer holds partitions that it has read: their records belong to other members now."""

    code = ErrorCode.UNKNOWN_MEMBER_ID
    partitions: tuple[TopicPartition, ...] = ()
    """Those that are lost, as far as known."""


class TooSlow(PartitionsLost):
    """The program worked for longer than `processing_timeout` between two calls, so the reader has left its group."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class Undelivered(FencepostError):
    """Records that failed since the last flush and that no ticket and no `on_error` has reported to the caller."""

    def __init__(self, count: int, causes: tuple[FencepostError, ...]) -> None:
        first = f"; first: {causes[0]}" if causes else ""
        super().__init__(f"{count} record{'s' if count != 1 else ''} not delivered{first}")
        self.count = count
        self.causes = causes
        """The first few errors, in the order in which they happened."""


class BufferFull(FencepostError):
    """The producer's memory is full of records that wait to be sent."""

    retriable = True
    accepted: Any = None
    """If only part of a table fitted: the ticket of the rows that did. It stays in its process."""

    def _kept(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "accepted"}


class RecordTooLarge(FencepostError):
    """A single record that exceeds the maximum request size."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class Closed(FencepostError):
    """A call on a producer or reader that is closed."""

    fatal = True

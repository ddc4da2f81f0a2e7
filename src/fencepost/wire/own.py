"""fencepost's own messages, as kio entities: Own (API key 10000) claims, waits for and releases resources;
DescribeOwners (10001) lists owners and waiting claims.

    OwnRequest v0          => group COMPACT_STRING, wait_ms INT32, resources [name COMPACT_STRING, generation INT32]
                              resource tag 0: after_token INT64
                              request tag 0: session_ms INT32; tag 1: release [COMPACT_STRING]
    OwnResponse v0         => error_code INT16, error_message COMPACT_NULLABLE_STRING,
                              resources [name COMPACT_STRING, error_code INT16, generation INT32, token INT64]
    OwnRequest v1          => group COMPACT_NULLABLE_STRING (null: the group `default`), wait_ms INT32,
                              resources [resource COMPACT_STRING, generation INT32], tags as in v0
    OwnResponse v1         => error_code INT16, error_message COMPACT_NULLABLE_STRING, group COMPACT_STRING,
                              resources [resource COMPACT_STRING, error_code INT16, generation INT32, token INT64]
    DescribeOwnersRequest  => group COMPACT_NULLABLE_STRING (null: all groups)
                              v1 adds resources [COMPACT_STRING]: return their newest tokens
    DescribeOwnersResponse => error_code INT16,
                              owners [group COMPACT_STRING, name COMPACT_STRING, generation INT32, token INT64,
                                      since_ms INT64, address COMPACT_STRING, client_id COMPACT_STRING],
                              waiting [group COMPACT_STRING, names [COMPACT_STRING],
                                       address COMPACT_STRING, client_id COMPACT_STRING],
                              v1 adds newest [group COMPACT_STRING, resource COMPACT_STRING, token INT64,
                                              since_ms INT64, address COMPACT_STRING, client_id COMPACT_STRING]

Arrays are compact, every struct ends in tagged fields; request header v2, response header v1.
"""

# No postponed annotations here: the codec needs the types of the fields, not their names.

from dataclasses import dataclass, field
from typing import ClassVar, Final

from fencepost.wire.codec import ErrorCode

UNSET_TOKEN: Final = -1
"""No token. As `after_token`: any newest token will do."""


def _of(kafka_type: str, tag: int | None = None) -> dict[str, object]:
    return {"kafka_type": kafka_type} if tag is None else {"kafka_type": kafka_type, "tag": tag}


class _Flexible:
    __slots__ = ()
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRequestResource(_Flexible):
    name: str = field(metadata=_of("string"))
    generation: int = field(metadata=_of("int32"))
    """The generation that the claimant believes in; 0 always succeeds and resets."""
    after_token: int = field(metadata=_of("int64", tag=0), default=UNSET_TOKEN)
    """Claim only if this is still the resource's newest token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRequest(_Flexible):
    group: str = field(metadata=_of("string"))
    wait_ms: int = field(metadata=_of("int32"), default=0)
    """Time to wait until all resources are free; 0: take over at once."""
    resources: tuple[OwnRequestResource, ...]
    session_ms: int = field(metadata=_of("int32", tag=0), default=0)
    """An owner that is silent for longer is severed; 0: never."""
    release: tuple[str, ...] = field(metadata=_of("string", tag=1), default=())
    """Resources of this group to release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResponseResource(_Flexible):
    name: str = field(metadata=_of("string"))
    error_code: ErrorCode = field(metadata=_of("error_code"))
    generation: int = field(metadata=_of("int32"))
    """The generation granted, or the current one if the claim was refused."""
    token: int = field(metadata=_of("int64"), default=UNSET_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResponse(_Flexible):
    error_code: ErrorCode = field(metadata=_of("error_code"))
    error_message: str | None = field(metadata=_of("string"), default=None)
    resources: tuple[OwnResponseResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRequestResourceV1(_Flexible):
    resource: str = field(metadata=_of("string"))
    generation: int = field(metadata=_of("int32"))
    after_token: int = field(metadata=_of("int64", tag=0), default=UNSET_TOKEN)

    @property
    def name(self) -> str:
        """Return the resource under its name in version 0, so that both versions are read alike."""
        return self.resource


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRequestV1(_Flexible):
    group: str | None = field(metadata=_of("string"), default=None)
    wait_ms: int = field(metadata=_of("int32"), default=0)
    resources: tuple[OwnRequestResourceV1, ...]
    session_ms: int = field(metadata=_of("int32", tag=0), default=0)
    release: tuple[str, ...] = field(metadata=_of("string", tag=1), default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResponseResourceV1(_Flexible):
    resource: str = field(metadata=_of("string"))
    error_code: ErrorCode = field(metadata=_of("error_code"))
    generation: int = field(metadata=_of("int32"))
    token: int = field(metadata=_of("int64"), default=UNSET_TOKEN)

    @property
    def name(self) -> str:
        return self.resource


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResponseV1(_Flexible):
    error_code: ErrorCode = field(metadata=_of("error_code"))
    error_message: str | None = field(metadata=_of("string"), default=None)
    group: str = field(metadata=_of("string"))
    """The group of the claim: the request's, or the default group."""
    resources: tuple[OwnResponseResourceV1, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeOwnersRequest(_Flexible):
    group: str | None = field(metadata=_of("string"), default=None)
    """null: all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOwner(_Flexible):
    group: str = field(metadata=_of("string"))
    name: str = field(metadata=_of("string"))
    generation: int = field(metadata=_of("int32"))
    token: int = field(metadata=_of("int64"))
    since_ms: int = field(metadata=_of("int64"))
    address: str = field(metadata=_of("string"))
    client_id: str = field(metadata=_of("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedWaitingClaim(_Flexible):
    group: str = field(metadata=_of("string"))
    names: tuple[str, ...] = field(metadata=_of("string"))
    address: str = field(metadata=_of("string"))
    client_id: str = field(metadata=_of("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeOwnersResponse(_Flexible):
    error_code: ErrorCode = field(metadata=_of("error_code"))
    owners: tuple[DescribedOwner, ...]
    waiting: tuple[DescribedWaitingClaim, ...]
    """In order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeOwnersRequestV1(_Flexible):
    group: str | None = field(metadata=_of("string"), default=None)
    resources: tuple[str, ...] = field(metadata=_of("string"), default=())
    """Resources whose newest tokens are returned, also if nobody owns them any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestToken(_Flexible):
    """The last grant of a resource, whether it is still owned or not."""

    group: str = field(metadata=_of("string"))
    resource: str = field(metadata=_of("string"))
    token: int = field(metadata=_of("int64"))
    since_ms: int = field(metadata=_of("int64"))
    """-1: granted before the server started."""
    address: str = field(metadata=_of("string"))
    client_id: str = field(metadata=_of("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeOwnersResponseV1(_Flexible):
    error_code: ErrorCode = field(metadata=_of("error_code"))
    owners: tuple[DescribedOwner, ...]
    waiting: tuple[DescribedWaitingClaim, ...]
    newest: tuple[NewestToken, ...]

"""InitProducerId (22): issue a pid and an epoch. Without a transactional id the pid is new; with one it is the id's own
pid with the next epoch, which fences the producer that had the last epoch (IDEM-5).

Versions 0 to 5. v2 is flexible, v3 lets a client send the pid and epoch it has (KIP-360), v4 answers PRODUCER_FENCED
where older versions answer INVALID_PRODUCER_EPOCH. An open transaction of the id is aborted first; if one is being
ended, the request waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from fencepost.core.producers.pid import Identity
from fencepost.core.security.access import CLUSTER_IDEMPOTENT_WRITE, TOPIC_WRITE, TRANSACTIONAL_ID_WRITE
from fencepost.core.security.acls import CLUSTER_NAME
from fencepost.core.transactions import NOBODY, TransactionState
from fencepost.errors import ErrorCode, FencepostError, Malformed, StorageError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.types import NO_EPOCH, NO_PID, Epoch, Milliseconds, Pid
from fencepost.wire.messages import ms

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_FENCED: Final = 4
_MAX_NAME_CHARACTERS: Final = 4096
"""Maximum length of a transactional id in characters: the server keeps all ids in memory."""


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    name = message.transactional_id
    expected = Identity(
        Pid(getattr(message, "producer_id", NO_PID)), Epoch(getattr(message, "producer_epoch", NO_EPOCH))
    )
    if name == "" or len(name or "") > _MAX_NAME_CHARACTERS or (expected.pid < 0) != (expected.epoch < 0):
        return _refused(ErrorCode.INVALID_REQUEST)
    if (refusal := _authorize(request, name)) is not ErrorCode.NONE:
        return _refused(refusal)
    known = name is None or broker.transactions.get(name) is not None
    if not known and len(broker.transactions) >= broker.config.max_transactional_ids:
        logger.warning("rejected transactional id %r: there are already max_transactional_ids", name)
        return _refused(ErrorCode.POLICY_VIOLATION)
    try:
        if name is None:
            given = Identity(await broker.pids.allocate(), Epoch(0))
        else:
            timeout = ms(message.transaction_timeout)
            given = await _init(broker, request, name, timeout, expected)
    except Malformed:
        raise
    except FencepostError as error:
        return _refused(_code_of(error, request.version, _FIRST_VERSION_WITH_FENCED))
    return {"error_code": ErrorCode.NONE, "producer_id": given.pid, "producer_epoch": given.epoch}


async def _init(broker: Broker, request: ApiRequest, name: str, timeout: Milliseconds, expected: Identity) -> Identity:
    """Give the id its next epoch. If that aborts an open transaction, it goes to the audit log."""
    found = broker.transactions.get(name)
    was_open = found.identity if found is not None and found.state is TransactionState.ONGOING else None
    code = ErrorCode.NONE
    try:
        return await broker.transactions.init(name, timeout, expected, request.connection)
    except FencepostError as error:
        code = error.code
        raise
    finally:
        # CONCURRENT_TRANSACTIONS: the abort is under way, and the client comes again.
        if was_open is not None and code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
            broker.audit.transaction_aborted(request.connection, "InitProducerId", name, was_open.pid, was_open.epoch)


def _authorize(request: ApiRequest, name: str | None) -> ErrorCode:
    """Return NONE if the client may have a pid. Without a transactional id it may if it may write to some topic."""
    if name is not None:
        return ErrorCode.NONE if request.may(TRANSACTIONAL_ID_WRITE, name) else TRANSACTIONAL_ID_WRITE.refusal
    if request.sees(CLUSTER_IDEMPOTENT_WRITE) or request.may_on_some(TOPIC_WRITE):
        return ErrorCode.NONE
    request.connection.denied(request.key, CLUSTER_IDEMPOTENT_WRITE, CLUSTER_NAME)
    return CLUSTER_IDEMPOTENT_WRITE.refusal


async def outcome_of(work: Awaitable[None], version: int, first_with_fenced: int = 2) -> ErrorCode:
    """Await the coordinator's work and return its error code, NONE if it succeeded. `Malformed` closes the
    connection."""
    try:
        await work
    except Malformed:
        raise
    except FencepostError as error:
        return _code_of(error, version, first_with_fenced)
    return ErrorCode.NONE


def _code_of(error: FencepostError, version: int, first_with_fenced: int) -> ErrorCode:
    """Translate an error into a code that the client knows: older versions lack PRODUCER_FENCED, and no client expects
    the code of a failing disk here, but all know how to wait for the coordinator."""
    if isinstance(error, StorageError):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error.code is ErrorCode.PRODUCER_FENCED and version < first_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


def _refused(code: ErrorCode) -> Fields:
    return {"error_code": code, "producer_id": NOBODY.pid, "producer_epoch": NOBODY.epoch}


API = Api(key=22, name="InitProducerId", versions=(0, 5), handle=handle)

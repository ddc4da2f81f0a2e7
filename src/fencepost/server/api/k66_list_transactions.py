"""ListTransactions (66): the transactional ids that match some filters.

Versions 0 to 2. v1 adds a filter by how long a transaction has been open, v2 one by a pattern of the id. As in Kafka,
patterns have RE2's syntax: matching one with Python's `re` could take forever.
"""

from __future__ import annotations

from typing import Final

from fencepost.core.groups.patterns import BadPattern, name_matcher
from fencepost.core.security.access import TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.transactions import TransactionMetadata, TransactionState
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_NEVER_HERE: Final = {"PrepareEpochFence", "Dead"}
"""States that exist only in Kafka; a filter may name them."""


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    states = {state.value for state in TransactionState} | _NEVER_HERE
    unknown = [name for name in message.state_filters if name not in states]
    pattern = getattr(message, "transactional_id_pattern", None) or ""
    answer: Fields = {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": []}
    try:
        matches = name_matcher(pattern) if pattern else None
    except BadPattern:
        return {**answer, "error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
    longer_than = getattr(message, "duration_filter", -1)
    filters, pids = frozenset(message.state_filters), frozenset(message.producer_id_filters)
    now = broker.clock.now_ms()

    def is_wanted(found: TransactionMetadata) -> bool:
        return (
            (not filters or found.state.value in filters)
            and (not pids or found.pid in pids)
            and (longer_than < 0 or (found.started_ms >= 0 and now - found.started_ms > longer_than))
            and (matches is None or matches(found.name))
            and request.sees(TRANSACTIONAL_ID_DESCRIBE, found.name)
        )

    rows = [
        {"transactional_id": found.name, "producer_id": found.pid, "transaction_state": found.state.value}
        async for found in paced(list(broker.transactions))
        if is_wanted(found)
    ]
    return {**answer, "transaction_states": rows}


API = Api(key=66, name="ListTransactions", versions=(0, 2), handle=handle)

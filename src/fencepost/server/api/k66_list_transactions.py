"""ListTransactions (66): the transactional ids there are, filtered.

Versions 0 to 2. v1 filters by how long a transaction has been open, v2 by a pattern of the name.
"""

from __future__ import annotations

import re
from typing import Final

from fencepost.core.transactions import State
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.router import Api, Fields, Request

_NEVER_HERE: Final = {"PrepareEpochFence", "Dead"}
"""Kafka has these states, too: asking for them is no mistake."""


def handle(broker: Broker, request: Request) -> Fields:
    message = request.message
    states = {state.value for state in State} | _NEVER_HERE
    unknown = [name for name in message.state_filters if name not in states]
    pattern = getattr(message, "transactional_id_pattern", None) or ""
    answer: Fields = {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": []}
    try:
        wanted = re.compile(pattern)
    except re.error:
        return {**answer, "error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
    longer_than = getattr(message, "duration_filter", -1)
    now = broker.clock.now_ms()
    rows = [
        {
            "transactional_id": found.name,
            "producer_id": found.pid,
            "transaction_state": found.state.value,
        }
        for found in broker.transactions
        if (not message.state_filters or found.state.value in message.state_filters)
        and (not message.producer_id_filters or found.pid in message.producer_id_filters)
        and (longer_than < 0 or (found.started_ms >= 0 and now - found.started_ms > longer_than))
        and (not pattern or wanted.fullmatch(found.name))
    ]
    return {**answer, "transaction_states": rows}


API = Api(key=66, name="ListTransactions", versions=(0, 2), handle=handle)

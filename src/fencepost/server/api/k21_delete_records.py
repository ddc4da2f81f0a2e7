"""DeleteRecords (21): delete all records before an offset; −1 means all readable records.

Versions 0 to 2; v2 is flexible. It answers when the new start offset is durable.
"""

from __future__ import annotations

from functools import partial

from fencepost.core.security.access import TOPIC_DELETE
from fencepost.core.security.audit_events import Event
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_write
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import answered, merged
from fencepost.types import Offset

_ALL = -1


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    asked = await merged(
        (topic.name, ((row.partition_index, row.offset) for row in topic.partitions))
        for topic in request.message.topics
    )
    rows = answered(asked, partial(_delete, broker, request))
    return {"topics": [{"name": name, "partitions": partitions} async for name, partitions in rows]}


async def _delete(broker: Broker, request: ApiRequest, topic: str, index: int, before: int) -> Fields:
    try:
        request.require(TOPIC_DELETE, topic)
        partition = broker.partition(topic, index)
        log = await partition.open()
        check_write(broker, request.connection, partition.topic, index)
        if partition.topic.is_compacted and not partition.topic.log_config.deletes:
            raise ServerError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted")
        offset = log.high_watermark if before == _ALL else Offset(before)
        if not 0 <= offset <= log.high_watermark:
            raise ServerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_records(offset)
        # Remove whole segments now, not in the next round of retention, but only those that the request covers.
        log.apply_retention(broker.clock.now_ms(), only_deleted=True)
        partition.wake()
        await partition.save_snapshot()
        broker.audit.changed(
            request.connection, Event.RECORDS_DELETED, TOPIC_DELETE, topic, partition=index, before_offset=offset
        )
    except FencepostError as error:
        return {"partition_index": index, "low_watermark": -1, "error_code": error.code}
    except OSError:
        return {"partition_index": index, "low_watermark": -1, "error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    return {"partition_index": index, "low_watermark": log.start_offset, "error_code": ErrorCode.NONE}


API = Api(key=21, name="DeleteRecords", versions=(0, 2), handle=handle)

"""Where fencepost's server answers otherwise than Apache Kafka 4.3.1, on purpose: the whole list.

A test that meets one asks `server.answer_to("…")`, and so is strict on both servers. Anything that is not listed here
is the same on both, or a bug.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fencepost.errors import ErrorCode


class Difference(NamedTuple):
    fencepost: Any
    kafka: Any
    reason: str


DIFFERENCES: Final[dict[str, Difference]] = {
    "seconds until the next heartbeat of a member that waits for partitions": Difference(
        0.05, 5.0, "most members release at once; with Kafka's interval a joining member would find out 5 s later"
    ),
    "batches remembered per producer": Difference(
        16, 5, "fencepost's own client may have more than five batches in flight per partition"
    ),
    "other records with the sequences of a batch": Difference(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.NONE,
        "Kafka takes them for a duplicate: acknowledged, and not stored; with this code clients go on with a new epoch",
    ),
    "sequences of an earlier transaction": Difference(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.NONE,
        "Kafka takes them for a duplicate, and a transaction is committed without records that it acknowledged",
    ),
    "a cut of an earlier transaction": Difference(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "clients abort the transaction and go on with a new epoch; Kafka's code ends librdkafka's producer",
    ),
    "a new pid whose first sequence is not 0": Difference(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.NONE,
        "H(P) + 1 = S from the first batch on: what should have come before it did not come",
    ),
    "old record format": Difference(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_RECORD,
        "the code that names the cause: the format is the problem, not the record",
    ),
    "unknown record format": Difference(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.CORRUPT_MESSAGE, "as for an old one"
    ),
    "unknown codec": Difference(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNKNOWN_SERVER_ERROR, "Kafka stumbles; the cause has a code"
    ),
    "cut batch": Difference(
        ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, "bytes are missing: sending them again may help"
    ),
    "half a batch behind the batch": Difference(
        ErrorCode.INVALID_RECORD, ErrorCode.NONE, "Kafka drops what it cannot read and says that all is well"
    ),
    "zeros behind the batch": Difference(
        ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, "one rule for whatever stands behind the batch"
    ),
    "no records at all": Difference(
        ErrorCode.INVALID_RECORD,
        None,
        "Kafka never answers null records, and the connection hangs",
    ),
    "base offset other than 0": Difference(
        ErrorCode.NONE, ErrorCode.INVALID_RECORD, "the server overwrites it, so it does no harm"
    ),
    "pid with a negative epoch": Difference(
        ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE, "a producer without an epoch could never be fenced"
    ),
    "records that cannot be decompressed": Difference(
        ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR, "the code that Kafka has for records that are wrong"
    ),
    "a reason in the answer to a refused batch": Difference(True, False, "Kafka gives the code alone for most faults"),
    "first answer for a topic created on demand": Difference(
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "one process: the topic is there at once",
    ),
    "a repeated InitProducerId after its epoch was used": Difference(
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.NONE,
        "once the new epoch is used its answer has arrived; who asks with the one before is a zombie",
    ),
    "EndTxn after somebody else's InitProducerId failed": Difference(
        ErrorCode.NONE,
        ErrorCode.PRODUCER_FENCED,
        "Kafka compares only the pid while a transaction is open: a zombie's refused request aborts it all the same",
    ),
    "a plain batch of a replaced epoch in a partition without its state": Difference(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.NONE,
        "Kafka's partitions learn of an epoch only by what is written to them; here they ask the coordinator",
    ),
    "WriteTxnMarkers where the coordinator has the transaction open": Difference(
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NONE,
        "the coordinator will end it, and the marker would tear it",
    ),
    "a delayed EndTxn of the same epoch ends the next transaction": Difference(
        False,
        True,
        "a request on a connection that its client has given up for a newer one is not answered: it may be a late one",
    ),
    "a delayed AddPartitionsToTxn of the same epoch begins a transaction": Difference(False, True, "as for EndTxn"),
    "Produce v12 of a partition that was not added": Difference(
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.NONE,
        "the newer transaction protocol (KIP-890, part 2) is not offered: partitions are added by AddPartitionsToTxn",
    ),
    "a fetch session on another connection": Difference(
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.NONE,
        "a session ends with its connection; clients begin a new one when theirs breaks",
    ),
    "a quota that is not a number": Difference(
        ErrorCode.INVALID_REQUEST, ErrorCode.NONE, "Kafka stores it, and limits nothing by it"
    ),
    "a quota for the name of a host": Difference(
        ErrorCode.INVALID_REQUEST, ErrorCode.NONE, "fencepost does not look up names; it compares IP addresses"
    ),
}

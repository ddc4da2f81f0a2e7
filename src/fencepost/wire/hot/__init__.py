"""Produce and Fetch, packed and parsed by hand: the messages that carry the records.

Record bytes are neither copied nor parsed. Decoding returns slices of the received buffer (writable if the buffer is,
so that the server can stamp offsets in place). Encoding returns a list of buffers for one writev, with the records as
they were given. A test per version and direction checks that all bytes equal kio's.

Fields that nobody here uses are skipped when reading and have their default when writing: leader hints (current_leader,
node_endpoints, diverging_epoch, snapshot_id, preferred_read_replica; our client uses Metadata instead) and a follower's
fields (cluster_id, replica_epoch, replica_directory_id, high_watermark).

produce.py, fetch.py   the two messages, requests and responses
"""

from fencepost.wire.hot.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from fencepost.wire.hot.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    decode_produce_request,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
)

__all__ = [
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchedPartition",
    "FetchedTopic",
    "ForgottenTopic",
    "ProducePartition",
    "ProduceRequest",
    "ProduceResponse",
    "ProduceTopic",
    "ProducedPartition",
    "ProducedTopic",
    "decode_fetch_request",
    "decode_fetch_response",
    "decode_produce_request",
    "decode_produce_response",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_produce_request",
    "encode_produce_response",
]

"""Produce and Fetch, packed and parsed by hand: the messages that carry the records.

Record bytes are neither copied nor looked at: what is decoded are slices of the buffer that came in (writable if that
is, so that the server can stamp offsets in place), and what is encoded is a list of buffers, the records among them as
they were given, for one writev. Everything else is byte-equal to what kio makes of the same message: a test for every
version, in both directions.

What nobody here uses is skipped when read and has its default when written: leader hints (current_leader,
node_endpoints, diverging_epoch, snapshot_id, preferred_read_replica; our client looks into Metadata instead) and a
follower's fields (cluster_id, replica_epoch, replica_directory_id, high_watermark).

produce.py, fetch.py   the two messages, requests and responses
pieces.py              the encodings that both share
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

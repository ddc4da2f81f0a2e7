"""The first batches of several partitions in one request per broker.

A broker verifies each partition of a transaction at its first batch, and handles one request of a connection at a time.
So a few small batches that go one after the other wait for the broker most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.client.cluster.batch_channel import BatchChannel
from fencepost.client.transactions.shared_writer import LeaderChannels, SharedTransaction
from fencepost.errors import ErrorCode, FencepostError
from fencepost.kernel import read_header, stamp_producer
from fencepost.types import TopicPartition


def write_first_batches(
    channels: LeaderChannels, transaction: SharedTransaction, batches: Mapping[TopicPartition, bytearray]
) -> dict[TopicPartition, int]:
    """Stamp and send the first batch of each partition, and return the last sequence of each that has it for sure.

    The caller brings the others by `PartitionWriter`, which asks what is there, and raises what cannot be cured."""
    identity = transaction.identity
    last: dict[TopicPartition, int] = {}
    for where, batch in batches.items():
        header = read_header(batch)
        stamp_producer(batch, header, identity.pid, identity.epoch, 0, transactional=transaction.name is not None)
        last[where] = header.last_offset_delta
    confirmed: dict[TopicPartition, int] = {}
    sent: list[BatchChannel] = []
    try:
        for channel, led in channels.to_leaders(batches).items():
            sent.append(channel)
            channel.send_batches({where: batches[where] for where in led}, transaction.name)
        for channel in list(sent):
            for topic, answer in channel.receive_all_produced():
                where = TopicPartition(topic or "", answer.index)
                if ErrorCode.of(answer.error_code) in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    confirmed[where] = last[where]
            sent.remove(channel)
    except FencepostError:  # the writers meet it again, and know what to do
        for channel in sent:  # answers may still be in flight on it
            channels.drop(channel)
    return confirmed

"""How a group changes its protocol while it has members, as on Kafka with `group.consumer.migration.policy`
bidirectional.

Clients are exchanged one by one, so members of both protocols are in a group for a while, and the group is one of the
new protocol then. It *upgrades* when the first member of the new protocol joins, and every classic member keeps what it
holds. It *downgrades* when the last one has left, and classic members are left. These then hold a rebalance, with a
leader of their own.

Numbers go on: epochs after the last generation, generations after the last epoch that a member was told. So no number
is ever used twice.
"""

from __future__ import annotations

from collections.abc import Callable

from fencepost.core.groups.assignors import PartitionId, Partitions
from fencepost.core.groups.classic import MOST_PROTOCOLS, Group
from fencepost.core.groups.classic_messages import (
    CONSUMER,
    Effect,
    GroupRecord,
    GroupSettings,
    Join,
    MemberRecord,
)
from fencepost.core.groups.holding import Named
from fencepost.core.groups.kip848 import ConsumerGroup, in_bytes
from fencepost.core.groups.kip848_messages import (
    JOIN_EPOCH,
    MOST_TOPIC_NAMES,
    NOTHING,
    ClassicPart,
    ConsumerGroupSettings,
    ConsumerGroupState,
    ConsumerMember,
    ExistingTopics,
    Heartbeat,
    MemberState,
)
from fencepost.core.groups.subscription import Subscription, parse_assignment, read_subscription
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Milliseconds


def upgrade(
    group_id: str, record: GroupRecord, settings: ConsumerGroupSettings, topics: ExistingTopics, now: Milliseconds
) -> ConsumerGroup | None:
    """Return a classic group as one of the new protocol. None: its members are not consumers, or share partitions."""
    if record.protocol_type != CONSUMER or len(record.members) >= settings.max_size:
        return None
    group = ConsumerGroup(group_id, settings, record.generation, record.generation)
    try:
        members = [_upgraded(member, record.generation, topics) for member in record.members]
        taken = frozenset().union(*(member.assigned for member, _ in members))
        for member, claim in sorted(members, key=lambda each: -each[1].generation):
            # A cooperative member that was told to release partitions holds them until it joins again. Of two that
            # claim the same, the one with the older claim was removed meanwhile.
            member.revoking = _ids(claim.owned, topics) - taken
            taken |= member.revoking
            if member.revoking:
                member.state = MemberState.UNREVOKED
        for member, _ in members:
            group.adopt(now, member)
    except ValueError:
        return None
    return group


def _upgraded(member: MemberRecord, epoch: int, topics: ExistingTopics) -> tuple[ConsumerMember, Subscription]:
    # Members of a rebalance that has not ended hold what they held before it.
    held = _ids(frozenset(parse_assignment(member.assignment) if member.assignment else ()), topics)
    subscription = _subscription(member.protocols)
    upgraded = ConsumerMember(
        member.member_id,
        member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=subscription.topics,
        epoch=epoch,
        previous_epoch=epoch,
        assigned=held,
        target=held,
        classic=ClassicPart(member.session_timeout_ms, member.protocols),
    )
    return upgraded, subscription


def downgrade(
    group: ConsumerGroup,
    settings: GroupSettings,
    new_id: Callable[[], str],
    topics: ExistingTopics,
    now: Milliseconds,
    *,
    has_joined: bool,
) -> tuple[Group, list[Effect]]:
    """Return a group whose members are all classic as a classic group, and its first effects.

    `has_joined`: a classic member has taken the place of the last static one of the new protocol. Then a rebalance is
    only needed if some members have not reached their part."""
    names = {info.topic_id: name for name, info in topics.by_name.items()}
    members = [
        MemberRecord(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.classic.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.classic.protocols,
            in_bytes(member.assigned | member.revoking, names, member.classic),
        )
        for member in group.members.values()
        if member.classic is not None
    ]
    record = GroupRecord(group.assignment_epoch, CONSUMER, None, members[0].member_id, tuple(members))
    classic = Group.restore(group.group_id, settings, new_id, record, now)
    classic.protocol = classic.members.chosen_protocol()
    behind = {member.member_id: member.epoch for member in group.members.values() if member.epoch < classic.generation}
    is_settled = has_joined and group.state is ConsumerGroupState.STABLE
    return classic, classic.begin(now, behind, rebalance=not is_settled)


def heartbeat_of(request: Join, member_id: str, settings: GroupSettings, topics: ExistingTopics) -> Heartbeat:
    """Return what a JoinGroup means in a group of the new protocol. Raise ServerError if it cannot be a member."""
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        raise ServerError(ErrorCode.INVALID_SESSION_TIMEOUT, f"{request.session_timeout_ms} ms")
    try:
        if request.protocol_type != CONSUMER or not 0 < len(request.protocols) <= MOST_PROTOCOLS:
            raise ValueError("not a consumer")
        subscription = _subscription(request.protocols)
    except ValueError as error:
        raise ServerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
    return Heartbeat(
        member_id,
        JOIN_EPOCH,
        request.instance_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=subscription.topics,
        topic_regex="",
        # One that comes with a new id holds nothing, whatever its predecessor held.
        owned=_ids(subscription.owned, topics) if request.member_id else NOTHING,
        client_id=request.client_id,
        client_host=request.client_host,
    )


def _subscription(protocols: tuple[tuple[str, bytes], ...]) -> Subscription:
    """Return what a consumer wants. It says the same with every protocol that it offers."""
    subscription = read_subscription(protocols[0][1])
    if len(subscription.topics) > MOST_TOPIC_NAMES:
        raise ValueError(f"a subscription of {len(subscription.topics)} topics, at most {MOST_TOPIC_NAMES}")
    return subscription


def _ids(partitions: Named, topics: ExistingTopics) -> Partitions:
    return frozenset(
        PartitionId(topics.by_name[topic].topic_id, index) for topic, index in partitions if topic in topics.by_name
    )

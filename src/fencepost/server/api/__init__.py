"""One file per API, named by its key: the listing of this folder is what the server speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.server.api import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k29_describe_acls,
    k32_describe_configs,
    k33_alter_configs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k46_list_partition_reassignments,
    k48_describe_client_quotas,
    k50_describe_user_scram_credentials,
    k60_describe_cluster,
    k61_describe_producers,
    k75_describe_topic_partitions,
)
from fencepost.server.router import Api

APIS: Final[Mapping[int, Api]] = {
    module.API.key: module.API
    for module in (
        k00_produce,
        k01_fetch,
        k02_list_offsets,
        k03_metadata,
        k18_api_versions,
        k19_create_topics,
        k20_delete_topics,
        k22_init_producer_id,
        k23_offset_for_leader_epoch,
        k29_describe_acls,
        k32_describe_configs,
        k33_alter_configs,
        k35_describe_log_dirs,
        k37_create_partitions,
        k43_elect_leaders,
        k44_incremental_alter_configs,
        k46_list_partition_reassignments,
        k48_describe_client_quotas,
        k50_describe_user_scram_credentials,
        k60_describe_cluster,
        k61_describe_producers,
        k75_describe_topic_partitions,
    )
}

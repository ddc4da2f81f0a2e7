// Java's admin client, call by call. Run as a source file with Kafka's jars on the class path:
//
//     java -cp 'JARS/*' AdminCalls.java BOOTSTRAP TOPIC GROUP
//
// TOPIC has two partitions, ten records of one idempotent producer in partition 0, none in partition 1; GROUP has no members
// and offset 3 committed for partition 0. Prints a line for each call: "ok NAME", or "failed NAME: why"; at
// the end "all calls were made".

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.quota.ClientQuotaFilter;

public class AdminCalls {
    interface Call {
        void run() throws Exception;
    }

    static void call(String name, Call call) {
        try {
            call.run();
            System.out.println("ok " + name);
        } catch (Throwable failure) {
            System.out.println("failed " + name + ": " + failure);
            failure.printStackTrace();
        }
    }

    static void check(boolean condition, String complaint) {
        if (!condition) throw new AssertionError(complaint);
    }

    static void equal(Object found, Object expected) {
        check(expected.equals(found), "found " + found + ", expected " + expected);
    }

    static void refused(Class<? extends Exception> kind, Call call) throws Exception {
        try {
            call.run();
        } catch (ExecutionException failure) {
            check(kind.isInstance(failure.getCause()), "refused with " + failure.getCause());
            return;
        }
        throw new AssertionError("was not refused");
    }

    static ListOffsetsResult.ListOffsetsResultInfo offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
    }

    static void topics(Admin admin, String topic, TopicPartition first) {
        call("listTopics", () -> check(admin.listTopics().names().get().contains(topic), "it is not there"));
        call("describeTopics", () -> {
            var byName = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            equal(byName.partitions().size(), 2);
            var byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(byName.topicId()))).allTopicIds().get();
            equal(byId.get(byName.topicId()).name(), topic);
        });
        call("describeTopics, unknown", () ->
            refused(UnknownTopicOrPartitionException.class, () -> admin.describeTopics(List.of(topic + "-not")).allTopicNames().get()));
        call("createTopics", () -> {
            var created = admin.createTopics(List.of(
                new NewTopic(topic + "-b", Optional.of(3), Optional.empty()).configs(Map.of("retention.ms", "1000"))));
            equal(created.numPartitions(topic + "-b").get(), 3);
            equal(created.replicationFactor(topic + "-b").get(), 1);
            equal(created.config(topic + "-b").get().get("retention.ms").value(), "1000");
        });
        call("createTopics, twice", () -> refused(TopicExistsException.class,
            () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get()));
        call("createTopics, validated only", () -> {
            admin.createTopics(List.of(new NewTopic(topic + "-c", 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all().get();
            check(!admin.listTopics().names().get().contains(topic + "-c"), "it was created");
        });
        call("createPartitions", () -> {
            admin.createPartitions(Map.of(topic + "-b", NewPartitions.increaseTo(5))).all().get();
            refused(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(topic + "-b", NewPartitions.increaseTo(4))).all().get());
        });
        call("deleteTopics by id", () -> {
            var id = admin.describeTopics(List.of(topic + "-b")).allTopicNames().get().get(topic + "-b").topicId();
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        });
        call("deleteTopics, unknown", () -> refused(UnknownTopicOrPartitionException.class,
            () -> admin.deleteTopics(List.of(topic + "-b")).all().get()));
        call("listOffsets", () -> {
            equal(offset(admin, first, OffsetSpec.earliest()).offset(), 0L);
            equal(offset(admin, first, OffsetSpec.latest()).offset(), 10L);
            equal(offset(admin, first, OffsetSpec.forTimestamp(0)).offset(), 0L);
            equal(offset(admin, first, OffsetSpec.earliestLocal()).offset(), 0L);
            equal(offset(admin, first, OffsetSpec.latestTiered()).offset(), -1L);
            check(offset(admin, first, OffsetSpec.maxTimestamp()).offset() >= 0, "there are records");
            equal(offset(admin, new TopicPartition(topic, 1), OffsetSpec.maxTimestamp()).offset(), -1L);
        });
        call("deleteRecords", () -> {
            var deleted = admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4)));
            equal(deleted.lowWatermarks().get(first).get().lowWatermark(), 4L);
            equal(offset(admin, first, OffsetSpec.earliest()).offset(), 4L);
        });
    }

    static void configs(Admin admin, String topic) {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        call("incrementalAlterConfigs", () -> {
            var changes = List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "5000"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND));
            admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        });
        call("describeConfigs", () -> {
            var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
            var found = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
            equal(found.get("retention.ms").value(), "5000");
            equal(found.get("retention.ms").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG);
            equal(found.get("retention.ms").type(), ConfigEntry.ConfigType.LONG);
            equal(found.get("cleanup.policy").value(), "delete,compact");
            equal(found.get("segment.bytes").source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG);
            check(!found.get("segment.bytes").documentation().isEmpty(), "no documentation");
        });
        call("describeConfigs of the node", () -> {
            var node = new ConfigResource(ConfigResource.Type.BROKER, "1");
            equal(admin.describeConfigs(List.of(node)).all().get().get(node).get("node.id").value(), "1");
        });
        call("listConfigResources", () -> {
            check(admin.listConfigResources().all().get().contains(resource), "the topic is not there");
            equal(admin.listConfigResources(Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions()).all().get().size(), 0);
        });
    }

    static void groups(Admin admin, String group, TopicPartition first) {
        call("listGroups", () -> check(
            admin.listGroups().all().get().stream().anyMatch(found -> found.groupId().equals(group)), "it is not there"));
        call("describeConsumerGroups", () -> {
            var found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            equal(found.groupState().toString(), "Empty");
            equal(found.members().size(), 0);
            equal(found.coordinator().id(), 1);
        });
        call("describeConsumerGroups, unknown", () -> refused(GroupIdNotFoundException.class,
            () -> admin.describeConsumerGroups(List.of(group + "-not")).all().get()));
        call("listConsumerGroupOffsets", () ->
            equal(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first).offset(), 3L));
        call("alterConsumerGroupOffsets", () -> {
            admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(5, "moved"))).all().get();
            var found = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first);
            equal(found.offset(), 5L);
            equal(found.metadata(), "moved");
        });
        call("deleteConsumerGroupOffsets", () -> {
            admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
            check(!admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().containsKey(first), "it is still there");
        });
        call("deleteConsumerGroups", () -> {
            admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(5))).all().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
            refused(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        });
    }

    static void node(Admin admin, String topic, TopicPartition first) {
        call("describeCluster", () -> {
            var found = admin.describeCluster();
            equal(found.nodes().get().size(), 1);
            equal(found.controller().get().id(), 1);
            equal(found.clusterId().get().length(), 22);
        });
        call("describeFeatures", () -> admin.describeFeatures().featureMetadata().get());
        call("describeLogDirs", () -> {
            var directories = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
            equal(directories.size(), 1);
            var only = directories.values().iterator().next();
            check(only.replicaInfos().get(first).size() > 0, "nothing was written");
            check(only.totalBytes().getAsLong() >= only.usableBytes().getAsLong(), "size of the disk");
        });
        call("describeReplicaLogDirs", () -> {
            var replica = new org.apache.kafka.common.TopicPartitionReplica(topic, 0, 1);
            check(admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir() != null, "no directory");
        });
        call("electLeaders", () -> {
            var found = admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions().get().get(first);
            check(found.orElse(null) instanceof ElectionNotNeededException, "found " + found);
        });
        call("listPartitionReassignments", () -> equal(admin.listPartitionReassignments().reassignments().get().size(), 0));
        call("describeAcls", () -> refused(SecurityDisabledException.class, () -> admin.describeAcls(AclBindingFilter.ANY).values().get()));
        call("describeClientQuotas", () -> equal(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size(), 0));
        call("describeUserScramCredentials", () -> equal(admin.describeUserScramCredentials().all().get().size(), 0));
    }

    static void producers(Admin admin, String topic, TopicPartition first) {
        call("describeProducers", () -> {
            var active = admin.describeProducers(List.of(first)).all().get().get(first).activeProducers();
            equal(active.size(), 1);
            equal(active.get(0).producerEpoch(), 0);
            equal(active.get(0).lastSequence(), 9);
            equal(active.get(0).currentTransactionStartOffset().isPresent(), false);
        });
        call("listTransactions, fenceProducers, describeTransactions", () -> {
            String name = topic + "-transactions";
            refused(TransactionalIdNotFoundException.class, () -> admin.describeTransactions(List.of(name)).all().get());
            admin.fenceProducers(List.of(name)).all().get();
            var states = new HashMap<String, TransactionState>();
            admin.listTransactions().all().get().forEach(found -> states.put(found.transactionalId(), found.state()));
            equal(states.get(name), TransactionState.EMPTY);
            equal(admin.describeTransactions(List.of(name)).all().get().get(name).state(), TransactionState.EMPTY);
        });
    }

    public static void main(String[] arguments) {
        String topic = arguments[1];
        TopicPartition first = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0], "default.api.timeout.ms", "30000"))) {
            node(admin, topic, first);
            producers(admin, topic, first);
            topics(admin, topic, first);
            groups(admin, arguments[2], first);
            configs(admin, topic);
        }
        System.out.println("all calls were made");
    }
}

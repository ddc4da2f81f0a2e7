// Java's own transactional producer. Run as a source file with Kafka's jars on the class path:
//
//     java -cp 'JARS/*' Transactions.java BOOTSTRAP TOPIC GROUP
//
// Commits, aborts, is fenced, and carries a group's offsets; reads it all back as a reader of committed records. Prints
// one line for the test that started it, or ends with an exception.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static void check(boolean condition, String complaint) {
        if (!condition) throw new AssertionError(complaint);
    }

    static KafkaProducer<String, String> producer(String servers, String name) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", name);
        settings.put("linger.ms", "5");
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String servers, String group, String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", isolation);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static void write(KafkaProducer<String, String> producer, String topic, String what, int count) {
        for (int number = 0; number < count; number++)
            producer.send(new ProducerRecord<>(topic, number % 2, null, what + number));
    }

    static List<String> read(String servers, List<TopicPartition> partitions, String isolation, int count) {
        List<String> values = new ArrayList<>();
        try (var consumer = consumer(servers, "not-joined", isolation)) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (values.size() < count) {
                var records = consumer.poll(Duration.ofSeconds(30));
                check(!records.isEmpty(), "only " + values.size() + " of " + count + " records came: " + values);
                for (ConsumerRecord<String, String> record : records) values.add(record.value());
            }
            // Nothing more may come: the position is at the end of what this reader may see.
            for (var end : consumer.endOffsets(partitions).entrySet())
                check(consumer.position(end.getKey()) == end.getValue(), "more in " + end.getKey());
        }
        return values;
    }

    public static void main(String[] arguments) {
        String servers = arguments[0], topic = arguments[1], group = arguments[2], name = topic + "-id";
        var partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        var first = producer(servers, name);
        first.initTransactions();
        first.beginTransaction();
        write(first, topic, "committed", 100);
        first.commitTransaction();
        first.beginTransaction();
        write(first, topic, "aborted", 100);
        first.flush();
        first.abortTransaction();
        first.beginTransaction();
        first.commitTransaction();  // nothing in it

        // The offsets of a group, as a member of it (KIP-447).
        try (var member = consumer(servers, group, "read_committed")) {
            member.subscribe(Set.of(topic));
            while (member.assignment().isEmpty()) member.poll(Duration.ofMillis(100));
            // Its first question for committed offsets is answered: one that is still open would be `committed`'s answer.
            partitions.forEach(member::position);
            ConsumerGroupMetadata metadata = member.groupMetadata();
            check(metadata.generationId() > 0, "no generation");
            first.beginTransaction();
            first.sendOffsetsToTransaction(Map.of(partitions.get(0), new OffsetAndMetadata(7, "seven")), metadata);
            write(first, topic, "with offsets", 2);
            first.commitTransaction();
            first.beginTransaction();
            first.sendOffsetsToTransaction(Map.of(partitions.get(0), new OffsetAndMetadata(9)), metadata);
            first.abortTransaction();
            var committed = member.committed(Set.copyOf(partitions));
            check(committed.get(partitions.get(0)).offset() == 7, "offset " + committed);
            check(committed.get(partitions.get(0)).metadata().equals("seven"), "metadata " + committed);
            check(committed.get(partitions.get(1)) == null, "offset of the other partition " + committed);
        }

        // A successor fences the first, in the middle of a transaction.
        first.beginTransaction();
        write(first, topic, "zombie", 2);
        first.flush();
        var second = producer(servers, name);
        second.initTransactions();
        boolean fenced = false;
        try {
            first.commitTransaction();
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            fenced = true;
        }
        check(fenced, "the zombie could commit");
        second.beginTransaction();
        write(second, topic, "successor", 2);
        second.commitTransaction();
        second.close();
        first.close(Duration.ZERO);

        List<String> seen = read(servers, partitions, "read_committed", 104);
        check(seen.size() == 104, seen.size() + " committed records");
        check(seen.stream().noneMatch(value -> value.startsWith("aborted") || value.startsWith("zombie")), "" + seen);
        check(read(servers, partitions, "read_uncommitted", 206).size() == 206, "uncommitted records");
        System.out.println("transactions: " + seen.size() + " records committed, 102 aborted");
    }
}

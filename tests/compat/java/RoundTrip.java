// Java's own producer and consumer, there and back. Run as a source file with Kafka's jars on the class path:
//
//     java -cp 'JARS/*' RoundTrip.java BOOTSTRAP TOPIC CODEC IDEMPOTENCE COUNT
//
// Sends COUNT records to partition 0, reads them back by assignment, and compares everything. Prints one line for the test
// that started it, or ends with an exception.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class RoundTrip {
    // An hour ago: records older than the retention may be deleted at any moment.
    static final long START = System.currentTimeMillis() - 3_600_000L;

    static byte[] key(int number) {
        return number % 5 == 0 ? null : ("key-" + number).getBytes(StandardCharsets.UTF_8);
    }

    static byte[] value(int number) {
        return number % 11 == 3 ? null : ("value-" + number + " ").repeat(number % 40).getBytes(StandardCharsets.UTF_8);
    }

    static void check(boolean condition, String complaint) {
        if (!condition) throw new AssertionError(complaint);
    }

    static void produce(String servers, TopicPartition target, String codec, String idempotence, int count) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("compression.type", codec);
        settings.put("enable.idempotence", idempotence);
        settings.put("acks", "all");
        settings.put("linger.ms", "5");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                var record = new ProducerRecord<>(
                    target.topic(), target.partition(), START + 10L * number, key(number), value(number));
                if (number % 3 == 0) record.headers().add("number", Integer.toString(number).getBytes()).add("null", null);
                sent.add(producer.send(record));
            }
            for (int number = 0; number < count; number++)
                check(sent.get(number).get().offset() == number, "record " + number + " got another offset");
        }
    }

    static void consume(String servers, TopicPartition source, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("auto.offset.reset", "none");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(source));
            consumer.seek(source, 0);
            int number = 0;
            while (number < count) {
                var records = consumer.poll(Duration.ofSeconds(30));
                check(!records.isEmpty(), "only " + number + " records came");
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    check(record.offset() == number, "offset " + record.offset() + " instead of " + number);
                    check(Arrays.equals(record.key(), key(number)), "key of " + number);
                    check(Arrays.equals(record.value(), value(number)), "value of " + number);
                    check(record.timestamp() == START + 10L * number, "time of " + number);
                    check(record.headers().toArray().length == (number % 3 == 0 ? 2 : 0), "headers of " + number);
                    number++;
                }
            }
            check(consumer.beginningOffsets(List.of(source)).get(source) == 0, "beginning");
            check(consumer.endOffsets(List.of(source)).get(source) == count, "end");
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(source, START + 11)).get(source);
            check(found.offset() == 2 && found.timestamp() == START + 20, "offset by time");
            check(consumer.offsetsForTimes(Map.of(source, START + 10L * count)).get(source) == null, "after the end");
            consumer.seek(source, count - 7);
            check(consumer.poll(Duration.ofSeconds(30)).iterator().next().offset() == count - 7, "seek into a batch");
        }
    }

    public static void main(String[] arguments) throws Exception {
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        int count = Integer.parseInt(arguments[4]);
        produce(arguments[0], partition, arguments[2], arguments[3], count);
        consume(arguments[0], partition, count);
        System.out.println("round trip of " + count + " records");
    }
}

// Java's own producer and consumer with credentials, one attempt after the other in one JVM. Run as a source file with
// Kafka's jars on the class path:
//
//     java -cp 'JARS/*' Logins.java
//
// Each line of the input is {"value": TEXT, "topic": TOPIC, "config": {NAME: VALUE}}. An attempt writes the value to
// partition 0 and reads it back. The answer is a line: "let in", or the name of Kafka's error.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Logins {
    // Kafka reads tokens only from files that a system property names.
    static final String FILES = "org.apache.kafka.sasl.oauthbearer.allowed.urls";

    static String attempt(Properties config, TopicPartition partition, String value) throws Exception {
        long offset;
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            offset = producer.send(new ProducerRecord<>(partition.topic(), 0, null, value)).get().offset();
        }
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            var read = consumer.poll(Duration.ofSeconds(30)).iterator().next().value();
            return read.equals(value) ? "let in" : "read " + read;
        }
    }

    static String name(Throwable failure) {
        if (failure instanceof ExecutionException) return name(failure.getCause());
        if (failure instanceof SslAuthenticationException) return "TLS alert";
        Errors known = Errors.forException(failure);
        return known == Errors.UNKNOWN_SERVER_ERROR ? failure.toString() : known.name();
    }

    public static void main(String[] none) throws Exception {
        var mapper = new ObjectMapper();
        var attempts = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = attempts.readLine(); line != null; line = attempts.readLine()) {
            JsonNode asked = mapper.readTree(line);
            var config = new Properties();
            asked.get("config").properties().forEach(each -> config.put(each.getKey(), each.getValue().asText()));
            System.setProperty(FILES, config.getProperty("sasl.oauthbearer.token.endpoint.url", ""));
            String answer;
            try {
                answer = attempt(config, new TopicPartition(asked.get("topic").asText(), 0), asked.get("value").asText());
            } catch (Exception failure) {
                answer = name(failure);
            }
            System.out.println(answer.replace('\n', ' '));
        }
    }
}

// Java's idempotent producer, driven line by line. Run as a source file with Kafka's jars on the class path:
//
//     java -cp 'JARS/*' SendLines.java BOOTSTRAP TOPIC
//
// Sends each line of the standard input to partition 0, and says `sent OFFSET` when it is acknowledged.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class SendLines {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("enable.idempotence", "true");
        var input = new BufferedReader(new InputStreamReader(System.in));
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            String line;
            while ((line = input.readLine()) != null) {
                var sent = producer.send(new ProducerRecord<>(arguments[1], 0, null, line)).get();
                System.out.println("sent " + sent.offset());
                System.out.flush();
            }
        }
    }
}

// Java's transactional producer in a loop of commits and aborts. Run as a source file with Kafka's jars on the class path:
//
//     java -cp 'JARS/*' TransactionsLoop.java BOOTSTRAP NOTES NAME TRANSACTIONS SEED
//
// Does and notes what tests/support/transactions_loop.py does and notes.

import java.io.FileWriter;
import java.io.PrintWriter;
import java.util.Properties;
import java.util.Random;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionsLoop {
    static KafkaProducer<String, String> producer(String servers, String name) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", "20000");
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "100");
        settings.put("retry.backoff.ms", "10");
        settings.put("request.timeout.ms", "5000");
        settings.put("delivery.timeout.ms", "60000");
        settings.put("max.block.ms", "120000");
        var made = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], name = arguments[2];
        var notes = new PrintWriter(new FileWriter(arguments[1], true), true);
        var dice = new Random(Long.parseLong(arguments[4]));
        var producer = producer(servers, name);
        for (int number = 0; number < Integer.parseInt(arguments[3]); number++) {
            int count = 1 + dice.nextInt(6);
            notes.println("begin " + number + " " + count);
            try {
                producer.beginTransaction();
                for (int i = 0; i < count; i++) {
                    producer.send(new ProducerRecord<>("t", dice.nextInt(3), null, name + ":" + number + ":" + i));
                    if (dice.nextInt(4) == 0) Thread.sleep(1);
                }
                if (dice.nextInt(10) < 4) {
                    producer.abortTransaction();
                    notes.println("aborted " + number);
                } else {
                    producer.commitTransaction();
                    notes.println("committed " + number);
                }
            } catch (KafkaException error) {
                notes.println("refused " + error.getClass().getSimpleName());
                try {
                    producer.abortTransaction();
                    notes.println("aborted " + number);
                } catch (KafkaException fatal) {
                    notes.println("fatal " + fatal.getClass().getSimpleName());
                    producer.close(java.time.Duration.ZERO);
                    producer = producer(servers, name);
                }
            }
        }
        producer.close();
        notes.println("done");
        System.exit(0);
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's producer, a record at a time: Failover TOPIC PARTITION VALUE_SIZE NAME=SETTING...
 *
 * It sends a record for each line that it reads, in a transaction of its own if transactional.id is set, and prints an
 * empty line after the acknowledgement.
 */
public class Failover {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        int partition = Integer.parseInt(arguments[1]);
        byte[] value = new byte[Integer.parseInt(arguments[2])];
        new Random().nextBytes(value);
        Properties settings = new Properties();
        for (int i = 3; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        boolean transactional = settings.containsKey("transactional.id");
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, plain, plain);
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            if (transactional) {
                producer.initTransactions();
            }
            while (lines.readLine() != null) {
                if (transactional) {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(topic, partition, null, value));
                    producer.commitTransaction();
                } else {
                    producer.send(new ProducerRecord<>(topic, partition, null, value)).get();
                }
                System.out.println();
                System.out.flush();
            }
        }
    }
}

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's producer, to all partitions in turn: Spread BOOTSTRAP TOPIC PARTITIONS BATCH_SIZE LINGER_MS MEMORY VALUE_SIZE
 * WARM_UP RECORDS.
 *
 * One process warms the compiler up with WARM_UP records, and then measures RECORDS records and its whole CPU time.
 */
public class Spread {
    private static final AtomicLong FAILED = new AtomicLong();
    private static final Callback COUNT_FAILURES = (metadata, error) -> {
        if (error != null) {
            FAILED.incrementAndGet();
        }
    };

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("batch.size", arguments[3]);
        settings.put("linger.ms", arguments[4]);
        settings.put("buffer.memory", arguments[5]);
        settings.put("max.block.ms", "600000");
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        byte[] value = new byte[Integer.parseInt(arguments[6])];
        int partitions = Integer.parseInt(arguments[2]);
        new Random().nextBytes(value);
        long warmUp = Long.parseLong(arguments[7]);
        long records = Long.parseLong(arguments[8]);
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, plain, plain)) {
            publish(producer, arguments[1], partitions, value, warmUp);
            long used = process.getProcessCpuTime();
            long started = System.nanoTime();
            publish(producer, arguments[1], partitions, value, records);
            double seconds = (System.nanoTime() - started) / 1e9;
            double cpu = (process.getProcessCpuTime() - used) / 1e3;
            System.out.printf(
                    Locale.ROOT,
                    "{\"records_per_s\": %.1f, \"cpu_us\": %.5f}%n",
                    records / seconds,
                    cpu / records);
        }
    }

    private static void publish(
            KafkaProducer<byte[], byte[]> producer, String topic, int partitions, byte[] value, long records) {
        for (long i = 0; i < records; i++) {
            producer.send(new ProducerRecord<>(topic, (int) (i % partitions), null, value), COUNT_FAILURES);
        }
        producer.flush();
        if (FAILED.get() > 0) {
            throw new IllegalStateException(FAILED.get() + " of " + records + " records were not delivered");
        }
    }
}

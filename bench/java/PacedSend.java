import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's producer at a steady rate: PacedSend BOOTSTRAP TOPIC VALUE_SIZE RATE BURST WARM_UP RECORDS.
 *
 * BURST records at full speed warm the compiler up. WARM_UP records at the rate do not count. RECORDS records count.
 */
public class PacedSend {
    private static final AtomicInteger FAILED = new AtomicInteger();

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("linger.ms", "0");
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        byte[] value = new byte[Integer.parseInt(arguments[2])];
        new Random().nextBytes(value);
        long rate = Long.parseLong(arguments[3]);
        int burst = Integer.parseInt(arguments[4]);
        int warmUp = Integer.parseInt(arguments[5]);
        int records = warmUp + Integer.parseInt(arguments[6]);
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, plain, plain)) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(arguments[1], value);
            run(producer, record, Long.MAX_VALUE, burst);
            long[][] times = run(producer, record, rate, records);
            report(times[0], times[1], times[2], warmUp);
        }
    }

    /** When each record was due, was called and was acknowledged, in nanoseconds. */
    private static long[][] run(
            KafkaProducer<byte[], byte[]> producer, ProducerRecord<byte[], byte[]> record, long rate, int records) {
        long[][] times = new long[3][records];
        long start = System.nanoTime();
        for (int i = 0; i < records; i++) {
            int number = i;
            long due = start + (long) (number * (1e9 / rate));
            times[0][number] = due;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            times[1][number] = System.nanoTime();
            producer.send(record, (metadata, error) -> {
                times[2][number] = System.nanoTime();
                if (error != null) {
                    FAILED.incrementAndGet();
                }
            });
        }
        producer.flush();
        if (FAILED.get() > 0) {
            throw new IllegalStateException(FAILED.get() + " records were not delivered");
        }
        return times;
    }

    private static void report(long[] due, long[] called, long[] acknowledged, int from) {
        int last = called.length - 1;
        System.out.printf(
                Locale.ROOT,
                "{\"records_per_s\": %.1f, \"call_p50_ms\": %.4f, \"call_p99_ms\": %.4f, \"due_p50_ms\": %.4f,"
                        + " \"due_p99_ms\": %.4f}%n",
                (last - from) * 1e9 / (called[last] - called[from]),
                percentile(called, acknowledged, from, 0.50),
                percentile(called, acknowledged, from, 0.99),
                percentile(due, acknowledged, from, 0.50),
                percentile(due, acknowledged, from, 0.99));
    }

    private static double percentile(long[] begin, long[] end, int from, double part) {
        long[] taken = new long[begin.length - from];
        for (int i = 0; i < taken.length; i++) {
            taken[i] = end[from + i] - begin[from + i];
        }
        Arrays.sort(taken);
        return taken[(int) Math.round(part * (taken.length - 1))] / 1e6;
    }
}

import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Threads.java BOOTSTRAP TOPIC BATCH_SIZE LINGER_MS VALUE_SIZE RECORDS THREADS...: records a second of a producer that
 * so many threads share, by number of threads. Every number runs twice, the second time in reverse order.
 */
public class Threads {
    private static final int WARM_UP_ROUNDS = 2;

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("batch.size", args[2]);
        settings.put("linger.ms", args[3]);
        settings.put("acks", "all");
        byte[] value = new byte[Integer.parseInt(args[4])];
        new Random(1).nextBytes(value);
        int records = Integer.parseInt(args[5]);
        int kinds = args.length - 6;
        int[] threads = new int[kinds];
        long[] elapsed = new long[kinds];
        for (int i = 0; i < kinds; i++) {
            threads[i] = Integer.parseInt(args[6 + i]);
        }
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < WARM_UP_ROUNDS; i++) {
                send(producer, args[1], value, records, threads[kinds - 1]);
                send(producer, args[1], value, records, 1);
            }
            for (int i = 0; i < 2 * kinds; i++) {
                int kind = i < kinds ? i : 2 * kinds - 1 - i;
                elapsed[kind] += send(producer, args[1], value, records, threads[kind]);
            }
        }
        StringBuilder found = new StringBuilder();
        for (int i = 0; i < kinds; i++) {
            found.append(i > 0 ? ", " : "").append("\"").append(threads[i]).append("\": ");
            found.append((double) (records / threads[i] * threads[i]) * 2e9 / elapsed[i]);
        }
        System.out.println("{" + found + "}");
    }

    private static long send(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value, int records, int threads)
            throws Exception {
        Thread[] running = new Thread[threads];
        long started = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            running[i] = new Thread(() -> {
                for (int n = 0; n < records / threads; n++) {
                    producer.send(new ProducerRecord<>(topic, value));
                }
            });
            running[i].start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        producer.flush();
        return System.nanoTime() - started;
    }
}

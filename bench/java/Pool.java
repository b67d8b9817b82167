import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.internals.BufferPool;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.Time;

/** Pool.java TOTAL POOLABLE_SIZE SIZE THREADS PAIRS: wall ns per pair of allocate and deallocate, all threads together. */
public class Pool {
    private static final long PATIENCE_MS = 10_000;

    public static void main(String[] args) throws Exception {
        int size = Integer.parseInt(args[2]);
        int threads = Integer.parseInt(args[3]);
        int pairs = Integer.parseInt(args[4]);
        BufferPool pool =
            new BufferPool(Long.parseLong(args[0]), Integer.parseInt(args[1]), new Metrics(), Time.SYSTEM, "bench");
        run(pool, size, threads, pairs);  // warms the compiler up
        System.out.println("{\"ns\": " + (double) run(pool, size, threads, pairs) / pairs / threads + "}");
    }

    private static long run(BufferPool pool, int size, int threads, int pairs) throws Exception {
        CountDownLatch start = new CountDownLatch(1);
        AtomicReference<Exception> failure = new AtomicReference<>();
        Thread[] running = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            running[i] = new Thread(() -> {
                try {
                    start.await();
                    for (int n = 0; n < pairs; n++) {
                        ByteBuffer buffer = pool.allocate(size, PATIENCE_MS);
                        pool.deallocate(buffer);
                    }
                } catch (Exception error) {
                    failure.set(error);
                }
            });
            running[i].start();
        }
        long started = System.nanoTime();
        start.countDown();
        for (Thread thread : running) {
            thread.join();
        }
        long elapsed = System.nanoTime() - started;
        if (failure.get() != null) {
            throw failure.get();
        }
        return elapsed;
    }
}

import java.nio.ByteBuffer;
import java.util.Random;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.TimestampType;

/** Encode.java MAGIC BATCH_SIZE KEY_SIZE VALUE_SIZE RECORDS: ns per record of Kafka's MemoryRecordsBuilder, warm. */
public class Encode {
    private static final int WARM_UP = 3_000_000;
    private static final long TIMESTAMP = 1_700_000_000_000L;

    public static void main(String[] args) {
        byte magic = Byte.parseByte(args[0]);
        ByteBuffer memory = ByteBuffer.allocate(Integer.parseInt(args[1]));
        Random random = new Random(1);
        byte[] key = new byte[Integer.parseInt(args[2])];
        byte[] value = new byte[Integer.parseInt(args[3])];
        random.nextBytes(key);
        random.nextBytes(value);
        int records = Integer.parseInt(args[4]);
        long bytes = encode(memory, magic, key, value, WARM_UP);
        long started = System.nanoTime();
        bytes += encode(memory, magic, key, value, records);
        long elapsed = System.nanoTime() - started;
        if (bytes < (long) (WARM_UP + records) * value.length) {
            throw new IllegalStateException("only " + bytes + " bytes were written");
        }
        System.out.println("{\"ns\": " + (double) elapsed / records + "}");
    }

    /** Does the producer's steps: ask for room, append, and close a full batch, which fills in its header and CRC. */
    private static long encode(ByteBuffer memory, byte magic, byte[] key, byte[] value, int records) {
        MemoryRecordsBuilder builder = open(memory, magic);
        long bytes = 0;
        for (int i = 0; i < records; i++) {
            if (!builder.hasRoomFor(TIMESTAMP, key, value, Record.EMPTY_HEADERS)) {
                bytes += builder.build().sizeInBytes();
                builder = open(memory, magic);
            }
            builder.append(TIMESTAMP, key, value, Record.EMPTY_HEADERS);
        }
        return bytes + builder.build().sizeInBytes();
    }

    private static MemoryRecordsBuilder open(ByteBuffer memory, byte magic) {
        memory.clear();
        return MemoryRecords.builder(memory, magic, Compression.NONE, TimestampType.CREATE_TIME, 0L);
    }
}

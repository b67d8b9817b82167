import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.util.TimePeriod;

/**
 * Decodes Avro with Apache Avro's own library. Each line of the first file is {"references": [text], "schema": text,
 * "values": [hex]}; one parser reads the references first, as Confluent's serializer does. Each line of the second becomes
 * {"shape": shape, "values": [value], "defaults": {field: value}}, or {"error": text}. A value is an array of the name of
 * its type and its parts, so that a wrong branch of a union shows.
 */
public class DecodeAvro {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final GenericData DATA = new GenericData();

    static {
        for (var conversion : List.of(
                new Conversions.DecimalConversion(), new Conversions.UUIDConversion(),
                new Conversions.DurationConversion(), new TimeConversions.DateConversion(),
                new TimeConversions.TimeMillisConversion(), new TimeConversions.TimeMicrosConversion(),
                new TimeConversions.TimestampMillisConversion(), new TimeConversions.TimestampMicrosConversion(),
                new TimeConversions.TimestampNanosConversion(), new TimeConversions.LocalTimestampMillisConversion(),
                new TimeConversions.LocalTimestampMicrosConversion(),
                new TimeConversions.LocalTimestampNanosConversion())) {
            DATA.addLogicalTypeConversion(conversion);
        }
    }

    public static void main(String[] paths) throws Exception {
        try (BufferedReader in = Files.newBufferedReader(Path.of(paths[0]));
                BufferedWriter out = Files.newBufferedWriter(Path.of(paths[1]))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.write(JSON.writeValueAsString(decodeCase(JSON.readTree(line))));
                out.write("\n");
            }
        }
    }

    private static Map<String, Object> decodeCase(JsonNode given) {
        try {
            Schema.Parser parser = new Schema.Parser();
            for (JsonNode reference : given.path("references")) {
                parser.parse(reference.asText());
            }
            Schema schema = parser.parse(given.get("schema").asText());
            GenericDatumReader<Object> reader = new GenericDatumReader<>(schema, schema, DATA);
            List<Object> values = new ArrayList<>();
            for (JsonNode hex : given.get("values")) {
                byte[] bytes = HexFormat.of().parseHex(hex.asText());
                BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(bytes, null);
                values.add(describe(reader.read(null, decoder)));
                if (!decoder.isEnd()) {
                    throw new IllegalStateException("bytes are left of " + hex);
                }
            }
            return Map.of("shape", shape(schema, new HashSet<>()), "values", values, "defaults", defaults(schema));
        } catch (Exception | StackOverflowError error) {
            return Map.of("error", error.toString());
        }
    }

    /** A schema with the full names of its types: of a named type its name, and at its first place its parts. */
    private static Object shape(Schema schema, Set<String> named) {
        Schema.Type type = schema.getType();
        if (type == Schema.Type.UNION) {
            return List.of("union", schema.getTypes().stream().map(branch -> shape(branch, named)).toList());
        } else if (type == Schema.Type.ARRAY) {
            return List.of("array", shape(schema.getElementType(), named));
        } else if (type == Schema.Type.MAP) {
            return List.of("map", shape(schema.getValueType(), named));
        } else if (type == Schema.Type.RECORD && named.add(schema.getFullName())) {
            List<Object> fields = new ArrayList<>();
            for (Schema.Field field : schema.getFields()) {
                fields.add(List.of(field.name(), shape(field.schema(), named)));
            }
            return List.of("record", schema.getFullName(), fields);
        } else if (type == Schema.Type.ENUM) {
            return List.of("enum", schema.getFullName(), schema.getEnumSymbols());
        } else if (type == Schema.Type.FIXED) {
            return List.of("fixed", schema.getFullName(), schema.getFixedSize());
        }
        return schema.getFullName();
    }

    /** What Java takes for the defaults of a record's fields. */
    private static Map<String, Object> defaults(Schema schema) {
        Map<String, Object> found = new LinkedHashMap<>();
        if (schema.getType() == Schema.Type.RECORD) {
            for (Schema.Field field : schema.getFields()) {
                if (field.hasDefaultValue()) {
                    found.put(field.name(), describe(DATA.getDefaultValue(field)));
                }
            }
        }
        return found;
    }

    private static Object describe(Object value) {
        if (value == null || value instanceof Boolean) {
            return value;
        } else if (value instanceof Integer) {
            return List.of("int", value);
        } else if (value instanceof Long) {
            return List.of("long", value);
        } else if (value instanceof Float number) {
            return List.of("float", number.isNaN() ? "nan" : Integer.toHexString(Float.floatToIntBits(number)));
        } else if (value instanceof Double number) {
            return List.of("double", number.isNaN() ? "nan" : Long.toHexString(Double.doubleToLongBits(number)));
        } else if (value instanceof CharSequence) {
            return List.of("string", value.toString());
        } else if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return List.of("bytes", HexFormat.of().formatHex(bytes));
        } else if (value instanceof GenericFixed fixed) {
            return List.of("fixed", fixed.getSchema().getName(), HexFormat.of().formatHex(fixed.bytes()));
        } else if (value instanceof GenericEnumSymbol<?> symbol) {
            return List.of("enum", symbol.getSchema().getName(), symbol.toString());
        } else if (value instanceof IndexedRecord record) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (Schema.Field field : record.getSchema().getFields()) {
                fields.put(field.name(), describe(record.get(field.pos())));
            }
            return List.of("record", record.getSchema().getName(), fields);
        } else if (value instanceof Collection<?> items) {
            return List.of("array", items.stream().map(DecodeAvro::describe).toArray());
        } else if (value instanceof Map<?, ?> map) {
            Map<String, Object> items = new LinkedHashMap<>();
            map.forEach((key, item) -> items.put(key.toString(), describe(item)));
            return List.of("map", items);
        }
        return describeLogical(value);
    }

    private static Object describeLogical(Object value) {
        if (value instanceof BigDecimal number) {
            return List.of("decimal", number.unscaledValue().toString(), number.scale());
        } else if (value instanceof UUID) {
            return List.of("uuid", value.toString());
        } else if (value instanceof TimePeriod period) {
            return List.of("duration", period.getMonths(), period.getDays(), period.getMillis());
        } else if (value instanceof LocalDate date) {
            return List.of("date", date.toEpochDay());
        } else if (value instanceof LocalTime time) {
            return List.of("time", time.toNanoOfDay());
        } else if (value instanceof Instant instant) {
            return List.of("timestamp", instant.getEpochSecond(), instant.getNano());
        } else if (value instanceof LocalDateTime local) {
            return List.of("local-timestamp", local.toEpochSecond(ZoneOffset.UTC), local.getNano());
        }
        throw new IllegalStateException("unknown class " + value.getClass());
    }
}
